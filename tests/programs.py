"""Random valid programs and streams they make, for tests that compare one implementation with another.

`random_case(random.Random(seed))` is the same case for the same seed. A case's stream is made by G from
random leaf words, so D succeeds on every block of it; its shared parts and payloads are what the reference
encoder makes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from brevisfs.dsl import (
    Add,
    BitReverse,
    Concat,
    Const,
    Encoding,
    Function,
    Gray,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Pack,
    Palette,
    ProgramError,
    Rans,
    Raw,
    Repeat,
    RotR,
    Scan,
    Select,
    Sparse,
    Transpose,
    Tunstall,
    Xor,
    ZigZag,
    Zstd,
    check,
    to_wire,
    walk,
)
from brevisfs.dsl.reference import (
    Malformed,
    NotApplicable,
    build_shared,
    encode_block,
    flatten,
    generate,
    usual_table,
)

COMMON_BITS = (8, 16, 32, 64, 4, 1)
MAX_WORK = 60_000
"""Words times nodes of a case, so that thousands of cases are made in a test run."""


@dataclass(frozen=True)
class Case:
    """A program of type bits[count], a stream of it, and that stream encoded in blocks of `block` words."""

    node: Node
    bits: int
    count: int
    block: int
    words: list[int]
    shared: bytes
    payloads: list[bytes]

    @cached_property
    def wire(self) -> bytes:
        return to_wire(self.node)

    @cached_property
    def flat(self) -> bytes:
        return flatten(self.words, self.bits)


def random_case(rng: random.Random) -> Case:
    """A case of any operator, encoding and width; bits * count is a multiple of 8, as a section's is."""
    while True:
        bits, count, block = random_type(rng)
        node = random_program(rng, bits, count)
        if count * sum(1 for _ in walk(node, bits, count)) > MAX_WORK:
            continue
        try:
            return case_of(rng, node, bits, count, block)
        except (Malformed, NotApplicable):
            # A place may lie beyond its palette, or a Select's child may have made the word it selects
            # from. A Scan over a Repeat can leave a word of the period to no block at all, and what the
            # reference puts there need not suit the period's own program.
            continue


def case_of(rng: random.Random, node: Node, bits: int, count: int, block: int) -> Case:
    """A random stream of a given program, encoded; raises NotApplicable where the reference cannot."""
    words = random_words(rng, node, bits, count, block)
    shared = build_shared(node, bits, count, block, words)
    payloads = [
        encode_block(node, bits, count, block, at // block, shared, words[at : at + block])
        for at in range(0, count, block)
    ]
    return Case(node, bits, count, block, words, shared, payloads)


def random_type(rng: random.Random) -> tuple[int, int, int]:
    """(bits, count, block)."""
    bits = rng.choice(COMMON_BITS) if rng.random() < 0.5 else rng.randint(1, 64)
    count = rng.randint(1, rng.choice([70, 600, 2000, 4000]))
    if rng.random() < 0.25:
        count = 96 * rng.randint(1, 40)
    if rng.random() < 0.03:
        count = rng.randint(4000, 20_000)
    step = 8 // math.gcd(8, bits)
    count = -(-count // step) * step
    return bits, count, 64 * rng.choice([1, 1, 2, 3, 4, 7, 8, 13, 16, 64, 1024])


# Programs


def random_program(rng: random.Random, bits: int, count: int) -> Node:
    """A program of type bits[count] that `check` accepts."""
    while True:
        node = _node(rng, bits, count, 0)
        try:
            check(node, bits, count)
        except ProgramError:  # too many nodes or tables
            continue
        return node


def _node(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    makers: list[Callable[[random.Random, int, int, int], Node]] = [_map, _transpose, _palette, _select]
    makers += [_concat, _scan, _repeat] * (count >= 2) + [_merge, _merge] * (bits >= 2)
    if bits in (8, 16, 32) and depth < 3:
        makers += [_float] * 2
    if depth < 4 and rng.random() < (0.9, 0.6, 0.45, 0.35)[depth]:
        return rng.choice(makers)(rng, bits, count, depth)
    if rng.random() < 0.1:
        return Const(rng.getrandbits(bits))
    return Lit(random_encoding(rng, bits))


def _map(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    return Map(random_function(rng, bits), _node(rng, bits, count, depth + 1))


def _float(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    """The shape that floats are mostly given, for which the native executor has a path of its own."""
    top = rng.randint(0, 3) if bits > 8 else 0
    coded = 8 if bits > 8 else rng.randint(1, 7)
    above: tuple[Node, ...] = ()
    if top:
        base = rng.getrandbits(top)
        above = (rng.choice((Const(base), Lit(Sparse(base)))),)
    symbols = rng.choice((_node(rng, coded, count, depth + 2), Lit(random_encoding(rng, coded))))
    node = Merge((top,) * (top > 0) + (coded, bits - coded - top), (*above, symbols, Lit(Raw())))
    return Map(RotR(rng.choice((1, 1, rng.randint(1, bits - 1)))), node) if rng.random() < 0.8 else node


def _transpose(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    columns = rng.choice([2, 3, 16, 20, 48, 64, rng.randint(2, 600)])
    return Transpose(columns, _node(rng, bits, count, depth + 1))


def _palette(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    width = rng.randint(1, min(bits, rng.choice([2, 4, 9])))
    size = 1 << width
    if rng.random() < 0.2:
        size = rng.randint(size // 2 + 1, size)
    size = max(size, 2)
    words = set(range(size)) if width == bits else set()
    while len(words) < size:
        words.add(rng.getrandbits(rng.randint(width, bits)))
    return Palette(tuple(sorted(words)), _node(rng, width, count, depth + 1))


def _select(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    masks: list[Node] = [Lit(random_encoding(rng, 1)), Lit(Raw()), Lit(Sparse(rng.getrandbits(1))), Const(1)]
    mask = _node(rng, 1, count, depth + 1) if rng.random() < 0.2 else rng.choice(masks)
    return Select(rng.getrandbits(bits), mask, _node(rng, bits, count, depth + 1))


def _concat(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    lengths = composition(rng, count, rng.randint(2, min(count, 5)))
    return Concat(lengths, tuple(_node(rng, bits, length, depth + 1) for length in lengths))


def _repeat(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    times = rng.choice([k for k in range(2, count + 1) if count % k == 0])
    return Repeat(times, _node(rng, bits, count // times, depth + 1))


def _scan(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    return Scan(rng.choice(("xor", "add")), _node(rng, bits, count - 1, depth + 1))


def _merge(rng: random.Random, bits: int, count: int, depth: int) -> Node:
    fields = bits if rng.random() < 0.05 else rng.randint(2, min(bits, 5))
    widths = composition(rng, bits, fields)
    if fields == bits:
        return Merge(widths, tuple(Lit(random_encoding(rng, 1)) for _ in widths))
    return Merge(widths, tuple(_node(rng, width, count, depth + 1) for width in widths))


def composition(rng: random.Random, total: int, parts: int) -> tuple[int, ...]:
    """`parts` numbers of at least 1 that sum to `total`."""
    cuts = [0, *sorted(rng.sample(range(1, total), parts - 1)), total]
    return tuple(b - a for a, b in pairwise(cuts))


def random_function(rng: random.Random, bits: int) -> Function:
    word = rng.randint(1, (1 << bits) - 1)
    functions: list[Function] = [Xor(word), Add(word), ZigZag(), Gray(), BitReverse()]
    if bits > 1:
        functions.append(RotR(rng.randint(1, bits - 1)))
    return rng.choice(functions)


def random_encoding(rng: random.Random, bits: int) -> Encoding:
    base = rng.choice([0, rng.getrandbits(bits)])
    encodings: list[Encoding] = [Raw(), Pack(rng.randrange(bits), base), Zstd(), Sparse(base)]
    if bits <= 16:
        tables = _tables(rng)
        encodings += [Huffman(rng.choice([1, 2, 4, 5, 16]), rng.randint(1, 15), *tables)] * 3
        encodings += [Rans(rng.choice([1, 3, 4, 32, 64]), rng.randint(8, 14), *tables)] * 3
        if bits <= 8:
            encodings += [Tunstall(rng.randint(8, 12), rng.randint(8, 14), *tables)] * 3
    return rng.choice(encodings)


def _tables(rng: random.Random) -> tuple[int, int, int, int]:
    """Tables, segment, classes of rows and of columns."""
    tables = rng.choice([1, 1, 2, 3, 8, rng.randint(2, 16)])
    if tables == 1:
        return 1, 0, 0, 0
    segment = rng.choice([16, 48, 64, 384, rng.randint(16, 1000)])
    if rng.random() < 0.5:
        return tables, segment, 0, 0
    rows, columns = rng.choice([1, 2, 3, 4, 8, rng.randint(1, 64)]), rng.choice([2, 3, rng.randint(2, 16)])
    return tables, segment, rows, columns


# Streams


def random_words(rng: random.Random, node: Node, bits: int, count: int, block: int) -> list[int]:
    """A stream on which the program's D succeeds block by block, each with anchors of its own."""
    source = _RandomSource(rng, node, bits, count)
    words: list[int] = []
    for lo in range(0, count, block):
        words += generate(node, 0, bits, lo, min(count, lo + block), source)
    return words


class _RandomSource:
    """The Source that makes up what a payload would say."""

    def __init__(self, rng: random.Random, node: Node, bits: int, count: int) -> None:
        self._rng = rng
        self._repeats = {
            index: (each.child, width, length // each.times)
            for index, _, each, width, length in walk(node, bits, count)
            if isinstance(each, Repeat)
        }
        self._periods: dict[int, list[int]] = {}
        self._alphabets: dict[tuple[int, int], tuple[list[int], list[float]]] = {}

    def anchor(self, index: int, bits: int) -> int:
        return self._rng.getrandbits(bits)

    def period(self, index: int) -> Sequence[int]:
        if index not in self._periods:
            child, bits, length = self._repeats[index]
            self._periods[index] = generate(child, index + 1, bits, 0, length, self)
        return self._periods[index]

    def literal(self, index: int, encoding: Encoding, bits: int, lo: int, hi: int) -> list[int]:
        rng, count = self._rng, hi - lo
        match encoding:
            case Pack(packed, base):
                return [(base + rng.getrandbits(packed)) % (1 << bits) for _ in range(count)]
            case Sparse(base):
                rarity = rng.choice([0.0, 0.02, 0.3, 1.0])
                return [rng.getrandbits(bits) if rng.random() < rarity else base for _ in range(count)]
            case Huffman(_, size_bits) | Rans(_, size_bits) | Tunstall(_, size_bits):
                words: list[int] = []
                for table, run in groupby(usual_table(encoding, at) for at in range(lo, hi)):
                    alphabet, weights = self._alphabet(index, table, bits, size_bits)
                    words += rng.choices(alphabet, weights, k=len(list(run)))
                return words
            case _:
                alphabet, weights = self._alphabet(index, 0, bits, 8)
                if rng.random() < 0.5:
                    return rng.choices(alphabet, weights, k=count)
                return [rng.getrandbits(bits) for _ in range(count)]

    def _alphabet(self, index: int, table: int, bits: int, size_bits: int) -> tuple[list[int], list[float]]:
        """Symbols a table can code, with skewed weights."""
        if (index, table) not in self._alphabets:
            rng = self._rng
            size = min(1 << bits, 1 << size_bits, rng.choice([1, 2, 3, 10, 40, 300]))
            start = rng.randrange((1 << bits) - size + 1)
            symbols = list(range(start, start + size))
            if rng.random() < 0.5 and bits <= 16:
                symbols = rng.sample(range(1 << bits), size)
            decay = rng.choice([0.5, 0.8, 0.97, 1.0])
            self._alphabets[index, table] = symbols, [max(decay**i, 1e-12) for i in range(size)]
        return self._alphabets[index, table]
