"""The plain-Python interpreter and encoder of docs/format.md, obvious rather than fast.

Tests compare the native executor with it; nothing else imports it (it needs `zstandard`, a test
dependency). It follows the page from top to bottom: words as bytes, map functions, G and D of the
operators, then how literals become payload items and tables become shared parts.

G and D know nothing of bytes. `generate` asks a `Source` for what a block stores (literals and anchors)
and what blocks share (a Repeat's period); `decompose` hands the same things to a `Sink`. Reading a payload,
writing one, gathering statistics and making random streams are four sources and sinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from typing import Protocol

import zstandard

from brevisfs.dsl._cursor import Cursor, Malformed, item, varint
from brevisfs.dsl._program import (
    Add,
    BitReverse,
    Coded,
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
    children,
    index_bits,
    walk,
)
from brevisfs.errors import BrevisError

__all__ = [
    "Malformed",
    "NotApplicable",
    "build_shared",
    "decode_block",
    "encode_block",
    "flatten",
    "huffman_item",
    "rans_item",
    "sliced",
    "sliced_size",
    "unflatten",
    "unsliced",
]

BUCKETS = 64
GROUP = 256
MAX_STRING = 7

Table = dict[int, int]
"""A table of a coded literal, symbols ascending: code lengths (huffman) or frequencies (rans, tunstall)."""


@dataclass(frozen=True)
class Tables:
    """The shared part of a coded literal: its tables, and which of them a word uses.

    `places` has the class of each place in a segment, `pairs` the number of the table of each pair of
    classes, a segment's and a place's. Without classes of places there is one for all of them.
    """

    each: list[Table]
    places: list[int]
    pairs: list[list[int]]

    def number(self, row: int, place: int) -> int:
        """Of the table of a word at `place` of a segment of class `row`."""
        return self.pairs[row][self.column(place)]

    def column(self, place: int) -> int:
        """The class of a place."""
        return self.places[place] if self.places else 0


NO_TABLES = Tables([], [], [])

Pieces = list[tuple[int, list[int]]]
"""Parts of one node's stream: position of the first word, words."""


class NotApplicable(BrevisError):
    """D: the words are not in the image of the program's G."""


def decode_block(
    node: Node, bits: int, count: int, block: int, index: int, shared: bytes, payload: bytes
) -> list[int]:
    """The words of block `index` of a stream of bits[count] cut into blocks of `block` words.

    Raises Malformed if `shared` or `payload` is not what the checked program `node` says.
    """
    lo, hi = block_range(count, block, index)
    reader = _Reader(_Shared(node, bits, count, shared), Cursor(payload))
    words = generate(node, 0, bits, lo, hi, reader)
    reader.payload.end()
    return words


def encode_block(
    node: Node, bits: int, count: int, block: int, index: int, shared: bytes, words: Sequence[int]
) -> bytes:
    """The payload of block `index`, whose words are `words`; raises NotApplicable."""
    lo, hi = block_range(count, block, index)
    if len(words) != hi - lo:
        raise NotApplicable(f"{len(words)} words for block {index} of {hi - lo}")
    writer = _Writer(_Shared(node, bits, count, shared))
    decompose(node, 0, bits, lo, list(words), writer)
    return bytes(writer.payload)


def build_shared(node: Node, bits: int, count: int, block: int, words: Sequence[int]) -> bytes:
    """The shared parts with which the blocks of the whole stream `words` encode.

    Which table a word of a literal of several counts towards, `usual_table` says. Raises NotApplicable if
    there are no such shared parts.
    """
    if len(words) != count:
        raise NotApplicable(f"{len(words)} words for a stream of {count}")
    pieces = [(lo, list(words[lo : lo + block])) for lo in range(0, count, block)]
    items: list[bytes] = []
    _build(node, bits, count, pieces, items)
    return b"".join(item(each) for each in items)


def block_range(count: int, block: int, index: int) -> tuple[int, int]:
    """The positions [lo, hi) of block `index`."""
    lo, hi = index * block, min(count, (index + 1) * block)
    if not 0 <= lo < hi:
        raise ValueError(f"there is no block {index} of {block} words in {count}")
    return lo, hi


# Words as bytes


def flatten(words: Sequence[int], bits: int) -> bytes:
    """Words as the original holds them: word i in bits i*b .. i*b + b - 1; the last byte padded with 0."""
    out = bytearray()
    for at in range(0, len(words), 8):
        few = words[at : at + 8]
        value = sum(word << (bits * i) for i, word in enumerate(few))
        out += value.to_bytes(-(-len(few) * bits // 8), "little")
    return bytes(out)


def unflatten(data: bytes, bits: int) -> list[int]:
    """The words of flat bytes; bits that do not fill a word are dropped."""
    mask = (1 << bits) - 1
    words: list[int] = []
    for at in range(0, len(data), bits):
        few = data[at : at + bits]
        value = int.from_bytes(few, "little")
        words += [value >> (bits * i) & mask for i in range(8 * len(few) // bits)]
    return words


def binary_parts(width: int) -> list[int]:
    """The powers of two that sum to `width`, from the largest."""
    return [1 << i for i in reversed(range(width.bit_length())) if width >> i & 1]


def _part_size(count: int, part: int) -> int:
    return -(-count * part // 8)


def sliced_size(count: int, width: int) -> int:
    """Bytes of the sliced form of `count` words of `width` bits."""
    return sum(_part_size(count, part) for part in binary_parts(width))


def sliced(words: Sequence[int], width: int) -> bytes:
    """The sliced form of words of `width` bits (0 to 64)."""
    out = bytearray()
    below = width
    for part in binary_parts(width):
        below -= part
        numbers = [word >> below & ((1 << part) - 1) for word in words]
        if part >= 8:
            out += b"".join(number.to_bytes(part // 8, "little") for number in numbers)
            continue
        for start in range(0, len(numbers), GROUP):
            group = numbers[start : start + GROUP]
            rows = bytearray(-(-len(group) * part // 8))
            for i, number in enumerate(group):
                rows[i % len(rows)] |= number << (part * (i // len(rows)))
            out += rows
    return bytes(out)


def unsliced(data: bytes, count: int, width: int) -> list[int]:
    """The words of a sliced form, which has exactly `sliced_size(count, width)` bytes."""
    if len(data) != sliced_size(count, width):
        raise Malformed(f"{len(data)} bytes for {count} sliced words of {width} bits")
    words = [0] * count
    at = 0
    for part in binary_parts(width):
        array = data[at : at + _part_size(count, part)]
        at += len(array)
        for i, number in enumerate(_numbers(array, count, part)):
            words[i] = words[i] << part | number
    return words


def _numbers(array: bytes, count: int, part: int) -> list[int]:
    if part >= 8:
        step = part // 8
        return [int.from_bytes(array[i : i + step], "little") for i in range(0, len(array), step)]
    numbers: list[int] = []
    for start in range(0, count, GROUP):
        length = min(GROUP, count - start)
        rows = array[start * part // 8 :][: -(-length * part // 8)]
        for i in range(length):
            numbers.append(rows[i % len(rows)] >> (part * (i // len(rows))) & ((1 << part) - 1))
    return numbers


# Map functions


def apply(function: Function, bits: int, child: int) -> int:
    """The stream's word made from the child's."""
    mask = (1 << bits) - 1
    match function:
        case Xor(word):
            return child ^ word
        case Add(word):
            return (child + word) & mask
        case ZigZag():
            return (child >> 1) ^ (-(child & 1) & mask)
        case Gray():
            word = 0
            for shift in range(bits):
                word ^= child >> shift
            return word
        case BitReverse():
            return int(f"{child:0{bits}b}"[::-1], 2)
        case RotR(places):
            return (child >> places | child << (bits - places)) & mask


def invert(function: Function, bits: int, word: int) -> int:
    """The child's word that `apply` takes to `word`."""
    mask = (1 << bits) - 1
    match function:
        case Xor() | BitReverse():
            return apply(function, bits, word)
        case Add(added):
            return (word - added) & mask
        case ZigZag():
            negative = word >> (bits - 1)
            return (word << 1 ^ -negative) & mask
        case Gray():
            return word ^ word >> 1
        case RotR(places):
            return apply(RotR(bits - places), bits, word)


# G and D


class Source(Protocol):
    """What `generate` reads, asked for in the order of docs/format.md. `index` is the node's prefix index."""

    def literal(self, index: int, encoding: Encoding, bits: int, lo: int, hi: int) -> list[int]: ...

    def anchor(self, index: int, bits: int) -> int: ...

    def period(self, index: int) -> Sequence[int]: ...


class Sink(Protocol):
    """What `decompose` writes, in the same order."""

    def literal(self, index: int, encoding: Encoding, bits: int, lo: int, words: list[int]) -> None: ...

    def anchor(self, index: int, bits: int, word: int) -> None: ...

    def period(self, index: int) -> Sequence[int]: ...


def _child_indices(node: Concat | Merge | Select, index: int) -> list[int]:
    parts = [child for child, _, _ in children(node, 1, 1)] if isinstance(node, Select) else node.children
    sizes = [sum(1 for _ in walk(part, 1, 1)) for part in parts[:-1]]
    return list(accumulate(sizes, initial=index + 1))


def generate(node: Node, index: int, bits: int, lo: int, hi: int, source: Source) -> list[int]:
    """G: the words [lo, hi) of the stream of the node with prefix index `index`, from `source`."""
    if lo == hi:
        return []
    match node:
        case Lit(encoding):
            return source.literal(index, encoding, bits, lo, hi)
        case Const(word):
            return [word] * (hi - lo)
        case Concat(lengths, parts):
            words: list[int] = []
            start = 0
            for part, at, length in zip(parts, _child_indices(node, index), lengths, strict=True):
                low, high = max(lo - start, 0), min(hi - start, length)
                if low < high:
                    words += generate(part, at, bits, low, high, source)
                start += length
            return words
        case Repeat():
            period = source.period(index)
            return [period[i % len(period)] for i in range(lo, hi)]
        case Map(function, child):
            return [apply(function, bits, word) for word in generate(child, index + 1, bits, lo, hi, source)]
        case Scan(kind, child):
            words = [source.anchor(index, bits)]
            for change in generate(child, index + 1, bits, lo, hi - 1, source):
                words.append(words[-1] ^ change if kind == "xor" else (words[-1] + change) % (1 << bits))
            return words
        case Transpose(columns, child):
            return by_rows(columns, generate(child, index + 1, bits, lo, hi, source))
        case Palette(table, child):
            places = generate(child, index + 1, index_bits(len(table)), lo, hi, source)
            if max(places) >= len(table):
                raise Malformed(f"node {index}: place {max(places)} in a palette of {len(table)} words")
            return [table[place] for place in places]
        case Select(word, mask, child):
            at_mask, at_child = _child_indices(node, index)
            chosen = generate(mask, at_mask, 1, lo, hi, source)
            next_word = iter(generate(child, at_child, bits, lo, lo + sum(chosen), source))
            return [next(next_word) if bit else word for bit in chosen]
        case Merge(widths, parts):
            words = [0] * (hi - lo)
            for part, at, width in zip(parts, _child_indices(node, index), widths, strict=True):
                fields = generate(part, at, width, lo, hi, source)
                words = [word << width | field for word, field in zip(words, fields, strict=True)]
            return words


def decompose(node: Node, index: int, bits: int, lo: int, words: list[int], sink: Sink) -> None:
    """D: splits `words`, which stand at `lo` of the node's stream, into `sink`; raises NotApplicable."""
    if not words:
        return
    match node:
        case Lit(encoding):
            sink.literal(index, encoding, bits, lo, words)
        case Const(word):
            if any(each != word for each in words):
                raise NotApplicable(f"node {index}: not every word is {word:#x}")
        case Repeat():
            period = sink.period(index)
            if any(word != period[i % len(period)] for i, word in enumerate(words, lo)):
                raise NotApplicable(f"node {index}: the words do not repeat the period")
        case Map(function, child):
            decompose(child, index + 1, bits, lo, [invert(function, bits, word) for word in words], sink)
        case Transpose(columns, child):
            decompose(child, index + 1, bits, lo, by_columns(columns, words), sink)
        case Scan(_, child):
            sink.anchor(index, bits, words[0])
            decompose(child, index + 1, bits, lo, changes(node, bits, words), sink)
        case Palette(_, child):
            places = places_of(node, words)
            decompose(child, index + 1, index_bits(len(node.words)), lo, places, sink)
        case Concat() | Merge() | Select():
            parts = split(node, bits, lo, words)
            below = [child for child, _, _ in children(node, bits, 1 << 62)]
            for child, at, (child_bits, start, fields) in zip(
                below, _child_indices(node, index), parts, strict=True
            ):
                decompose(child, at, child_bits, start, fields, sink)


def by_columns(columns: int, words: Sequence[int]) -> list[int]:
    """The child's words of a Transpose: the whole rows column by column, then what is left."""
    whole = len(words) // columns * columns
    return [word for column in range(columns) for word in words[column:whole:columns]] + list(words[whole:])


def by_rows(columns: int, words: Sequence[int]) -> list[int]:
    """The other way round."""
    rows = len(words) // columns
    whole = rows * columns
    return [word for row in range(rows) for word in words[row:whole:rows]] + list(words[whole:])


def changes(node: Scan, bits: int, words: Sequence[int]) -> list[int]:
    """The child's words of a Scan whose own are `words`."""
    if node.kind == "xor":
        return [one ^ other for one, other in pairwise(words)]
    return [(other - one) % (1 << bits) for one, other in pairwise(words)]


def places_of(node: Palette, words: Sequence[int]) -> list[int]:
    """The child's words of a Palette whose own are `words`; raises NotApplicable."""
    place = {word: i for i, word in enumerate(node.words)}
    if not place.keys() >= set(words):
        raise NotApplicable(f"{min(set(words) - place.keys()):#x} is not in the palette")
    return [place[word] for word in words]


def split(
    node: Concat | Merge | Select, bits: int, lo: int, words: Sequence[int]
) -> list[tuple[int, int, list[int]]]:
    """What each child gets of `words` at `lo`: its bits, the position in its own stream, its words."""
    parts: list[tuple[int, int, list[int]]] = []
    if isinstance(node, Select):
        mask = [int(word != node.word) for word in words]
        return [(1, lo, mask), (bits, lo, [word for word in words if word != node.word])]
    if isinstance(node, Merge):
        below = bits
        for width in node.widths:
            below -= width
            parts.append((width, lo, [word >> below & ((1 << width) - 1) for word in words]))
        return parts
    start = 0
    for length in node.lengths:
        low, high = max(lo - start, 0), min(lo + len(words) - start, length)
        parts.append((bits, low, list(words[low + start - lo : high + start - lo]) if low < high else []))
        start += length
    return parts


# Payload


class _Shared:
    """The shared parts of a program: tables and periods by prefix index."""

    def __init__(self, node: Node, bits: int, count: int, shared: bytes) -> None:
        self.tables: dict[int, Tables] = {}
        self.periods: dict[int, list[int]] = {}
        cursor = Cursor(shared)
        repeats: list[tuple[int, Node, int, int, Cursor]] = []
        for index, _, each, width, length in walk(node, bits, count):
            match each:
                case Lit(Huffman() | Rans() | Tunstall() as encoding):
                    self.tables[index] = parse_tables(encoding, width, cursor.item())
                case Repeat(times, child):
                    repeats.append((index, child, width, length // times, cursor.item()))
        cursor.end()
        # A period may hold another Repeat, whose index is then higher.
        for index, child, width, length, payload in reversed(repeats):
            self.periods[index] = generate(child, index + 1, width, 0, length, _Reader(self, payload))
            payload.end()


class _Reader:
    """The Source that reads a payload."""

    def __init__(self, shared: _Shared, payload: Cursor) -> None:
        self.shared = shared
        self.payload = payload

    def literal(self, index: int, encoding: Encoding, bits: int, lo: int, hi: int) -> list[int]:
        tables = self.shared.tables.get(index, NO_TABLES)
        return read_literal(self.payload, encoding, tables, bits, lo, hi)

    def anchor(self, index: int, bits: int) -> int:
        word = int.from_bytes(self.payload.take(-(-bits // 8)), "little")
        if word >> bits:
            raise Malformed(f"node {index}: anchor {word:#x} is not a word of {bits} bits")
        return word

    def period(self, index: int) -> Sequence[int]:
        return self.shared.periods[index]


class _Writer:
    """The Sink that writes a payload."""

    def __init__(self, shared: _Shared) -> None:
        self.shared = shared
        self.payload = bytearray()

    def literal(self, index: int, encoding: Encoding, bits: int, lo: int, words: list[int]) -> None:
        self.payload += literal_item(encoding, self.shared.tables.get(index, NO_TABLES), bits, lo, words)

    def anchor(self, index: int, bits: int, word: int) -> None:
        self.payload += word.to_bytes(-(-bits // 8), "little")

    def period(self, index: int) -> Sequence[int]:
        return self.shared.periods[index]


def read_literal(
    payload: Cursor, encoding: Encoding, tables: Tables, bits: int, lo: int, hi: int
) -> list[int]:
    """The words [lo, hi) of a Lit, whose item is next in `payload`."""
    count = hi - lo
    match encoding:
        case Raw():
            return unsliced(payload.take(sliced_size(count, bits)), count, bits)
        case Pack(packed, base):
            words = unsliced(payload.take(sliced_size(count, packed)), count, packed)
            return [(word + base) % (1 << bits) for word in words]
        case Zstd():
            return unsliced(_zstd_content(payload.item()), count, bits)
        case Sparse(base):
            return _read_sparse(payload.item(), base, bits, count)
        case Huffman():
            return _read_huffman(payload.item(), encoding, tables, lo, hi)
        case Rans():
            return _read_rans(payload.item(), encoding, tables, lo, hi)
        case Tunstall():
            return _read_tunstall(payload.item(), encoding, tables, lo, hi)


def literal_item(encoding: Encoding, tables: Tables, bits: int, lo: int, words: list[int]) -> bytes:
    """The payload item of a Lit's words at `lo`; raises NotApplicable."""
    match encoding:
        case Raw():
            return sliced(words, bits)
        case Pack(packed, base):
            above = [(word - base) % (1 << bits) for word in words]
            if max(above) >> packed:
                raise NotApplicable(f"{max(above):#x} above the base does not fit {packed} bits")
            return sliced(above, packed)
        case Zstd():
            return item(zstandard.ZstdCompressor(level=3).compress(sliced(words, bits)))
        case Sparse(base):
            return item(_sparse_item(base, bits, words))
        case Huffman():
            return item(_huffman_item(encoding, tables, lo, words))
        case Rans():
            return item(_rans_item(encoding, tables, lo, words))
        case Tunstall():
            return item(_tunstall_item(encoding, tables, lo, words))


def _zstd_content(frame: Cursor) -> bytes:
    reader = zstandard.ZstdDecompressor().decompressobj()
    try:
        content = reader.decompress(frame.take(frame.left))
    except zstandard.ZstdError as error:
        raise Malformed(f"zstd: {error}") from None
    if not reader.eof or reader.unused_data:
        raise Malformed("zstd: not exactly one frame")
    return content


def _read_sparse(cursor: Cursor, base: int, bits: int, count: int) -> list[int]:
    exceptions = cursor.varint()
    if exceptions > count:
        raise Malformed(f"{exceptions} exceptions in {count} words")
    positions: list[int] = []
    for _ in range(exceptions):
        positions.append((positions[-1] + 1 if positions else 0) + cursor.varint())
    if positions and positions[-1] >= count:
        raise Malformed(f"an exception at {positions[-1]} of {count} words")
    others = [1 - base] * exceptions
    if bits > 1:
        others = unsliced(cursor.take(sliced_size(exceptions, bits)), exceptions, bits)
    cursor.end()
    words = [base] * count
    for position, word in zip(positions, others, strict=True):
        words[position] = word
    return words


def _sparse_item(base: int, bits: int, words: list[int]) -> bytes:
    positions = [i for i, word in enumerate(words) if word != base]
    gaps = [at - before - 1 for before, at in pairwise([-1, *positions])]
    others = b"" if bits == 1 else sliced([words[i] for i in positions], bits)
    return varint(len(positions)) + b"".join(varint(gap) for gap in gaps) + others


# Coded literals: which table each word uses


def _row_classes(encoding: Coded) -> int:
    return encoding.rows or encoding.tables


def _segment(encoding: Coded, position: int) -> int:
    return position // encoding.segment if encoding.tables > 1 else 0


def _place(encoding: Coded, position: int) -> int:
    return position % encoding.segment if encoding.tables > 1 else 0


@dataclass(frozen=True)
class _Classes:
    """How a coded literal's words are coded: each run of `runs` holds the positions in the range, in the
    order in which they are coded, that share the table of the same place in `tables`. The runs one after
    another are the class order."""

    tables: list[Table]
    runs: list[list[int]]

    def tables_in_order(self) -> list[Table]:
        return [table for table, run in zip(self.tables, self.runs, strict=True) for _ in run]

    def places(self) -> list[int]:
        """Of the words in class order, the number of each within its class."""
        return [place for run in self.runs for place in range(len(run))]

    def order(self) -> list[int]:
        return [position for run in self.runs for position in run]


def _by_class(encoding: Coded, tables: Tables, classes: list[int], lo: int, count: int) -> _Classes:
    first = _segment(encoding, lo)

    def column_order(position: int) -> tuple[int, int]:
        return _segment(encoding, lo + position), tables.column(_place(encoding, lo + position))

    runs: list[list[int]] = [[] for _ in tables.each]
    for position in sorted(range(count), key=column_order):
        row = classes[_segment(encoding, lo + position) - first]
        runs[tables.number(row, _place(encoding, lo + position))].append(position)
    return _Classes(tables.each, runs)


def _read_classes(cursor: Cursor, encoding: Coded, tables: Tables, lo: int, hi: int) -> _Classes:
    """From the classes that begin the item."""
    rows, segments = _row_classes(encoding), _segment(encoding, hi - 1) - _segment(encoding, lo) + 1
    width = index_bits(rows)
    classes = unsliced(cursor.take(sliced_size(segments, width)), segments, width)
    if max(classes) >= rows:
        raise Malformed(f"class {max(classes)} of {rows} classes of segments")
    return _by_class(encoding, tables, classes, lo, hi - lo)


def _choose_classes(
    encoding: Coded, tables: Tables, lo: int, words: list[int], cost: Callable[[int], float]
) -> tuple[bytes, _Classes]:
    """The classes as the item begins with them: the cheapest for each segment."""
    first = _segment(encoding, lo)
    segments: list[list[tuple[int, int]]]
    segments = [[] for _ in range(_segment(encoding, lo + len(words) - 1) - first + 1)]
    for i, word in enumerate(words, lo):
        segments[_segment(encoding, i) - first].append((_place(encoding, i), word))

    def price(row: int, segment: list[tuple[int, int]]) -> float:
        used = [(tables.each[tables.number(row, place)], word) for place, word in segment]
        return sum(cost(table[word]) if word in table else math.inf for table, word in used)

    classes: list[int] = []
    for segment in segments:
        best = min(range(_row_classes(encoding)), key=lambda row: price(row, segment))
        if math.isinf(price(best, segment)):
            raise NotApplicable("no class has a code for every word of a segment")
        classes.append(best)
    written = sliced(classes, index_bits(_row_classes(encoding)))
    return written, _by_class(encoding, tables, classes, lo, len(words))


def parse_tables(encoding: Coded, bits: int, cursor: Cursor) -> Tables:
    """The shared part of a coded literal; raises Malformed."""
    places, pairs = _parse_pairs(encoding, cursor)
    if isinstance(encoding, Huffman):
        return Tables(parse_huffman(encoding, bits, cursor), places, pairs)
    return Tables(parse_frequencies(encoding, bits, cursor), places, pairs)


def _parse_pairs(encoding: Coded, cursor: Cursor) -> tuple[list[int], list[list[int]]]:
    rows, columns = encoding.rows, encoding.columns
    if not columns:
        return [], [[table] for table in range(encoding.tables)]
    width, length = index_bits(columns), encoding.segment
    places = unsliced(cursor.take(sliced_size(length, width)), length, width)
    if max(places) >= columns:
        raise Malformed(f"class {max(places)} of {columns} classes of columns")
    width, length = index_bits(encoding.tables), rows * columns
    numbers = unsliced(cursor.take(sliced_size(length, width)), length, width)
    if max(numbers) >= encoding.tables:
        raise Malformed(f"table {max(numbers)} of {encoding.tables}")
    return places, [numbers[at : at + columns] for at in range(0, length, columns)]


def pairs_item(encoding: Coded, places: Sequence[int], pairs: Sequence[int]) -> bytes:
    """What a shared part begins with: the class of each column, and the table of each pair of classes."""
    if not encoding.columns:
        return b""
    return sliced(places, index_bits(encoding.columns)) + sliced(pairs, index_bits(encoding.tables))


def _in_place(order: list[int], words: list[int]) -> list[int]:
    """Words in class order, back at their positions."""
    out = [0] * len(words)
    for position, word in zip(order, words, strict=True):
        out[position] = word
    return out


# Huffman


def canonical(lengths: Table) -> dict[str, int]:
    """Codes, as strings of bits, to symbols."""
    if len(lengths) == 1:
        return dict.fromkeys("01", *lengths)
    codes: dict[str, int] = {}
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code = code + 1 << length - before if codes else 0
        codes[f"{code:0{length}b}"] = symbol
        before = length
    return codes


def _deal(streams: int, chosen: _Classes) -> list[list[tuple[int, Table]]]:
    """For each stream its words, as positions and tables."""
    dealt: list[list[tuple[int, Table]]] = [[] for _ in range(streams)]
    for table, run in zip(chosen.tables, chosen.runs, strict=True):
        quota = -(-len(run) // streams)
        for j, stream in enumerate(dealt):
            stream += [(position, table) for position in run[j * quota : (j + 1) * quota]]
    return dealt


def _read_huffman(cursor: Cursor, encoding: Huffman, tables: Tables, lo: int, hi: int) -> list[int]:
    chosen = _read_classes(cursor, encoding, tables, lo, hi)
    codes = {id(table): canonical(table) for table in tables.each}
    lengths = [cursor.varint() for _ in range(encoding.streams - 1)]
    streams = [cursor.take(length) for length in lengths]
    streams.append(cursor.take(cursor.left))
    words = [0] * (hi - lo)
    for dealt, stream in zip(_deal(encoding.streams, chosen), streams, strict=True):
        read = _read_codes(stream, [codes[id(table)] for _, table in dealt])
        for (position, _), word in zip(dealt, read, strict=True):
            words[position] = word
    return words


def _read_codes(stream: bytes, codes: list[dict[str, int]]) -> list[int]:
    """One word a dictionary of codes, from a stream that is read from its end."""
    if not codes:
        if stream:
            raise Malformed("a stream without words has bytes")
        return []
    if not stream or not stream[-1]:
        raise Malformed("a stream without an end mark")
    bits = f"{int.from_bytes(stream, 'little'):b}"[1:]
    at = 0
    words: list[int] = []
    for table in codes:
        end = at + 1
        while bits[at:end] not in table:
            if end >= len(bits):
                raise Malformed("a stream ends early")
            end += 1
        words.append(table[bits[at:end]])
        at = end
    if at != len(bits):
        raise Malformed(f"{len(bits) - at} bits too many in a stream")
    return words


def _huffman_item(encoding: Huffman, tables: Tables, lo: int, words: list[int]) -> bytes:
    classes, chosen = _choose_classes(encoding, tables, lo, words, float)
    codes = {
        id(table): {word: code for code, word in reversed(canonical(table).items())} for table in tables.each
    }
    streams: list[bytes] = []
    for dealt in _deal(encoding.streams, chosen):
        bits = "".join(codes[id(table)][words[position]] for position, table in dealt)
        streams.append(int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "little") if dealt else b"")
    return classes + b"".join(varint(len(stream)) for stream in streams[:-1]) + b"".join(streams)


def parse_huffman(encoding: Huffman, bits: int, cursor: Cursor) -> list[Table]:
    """The tables of a huffman shared part; raises Malformed."""
    nibbles = [nibble for byte in cursor.take(cursor.left) for nibble in (byte & 15, byte >> 4)]
    reader = Cursor(bytes(nibbles))
    tables = [_parse_lengths(reader, 1 << bits, encoding.max_length) for _ in range(encoding.tables)]
    if reader.left > 1 or any(reader.take(reader.left)):
        raise Malformed("nibbles after the last table")
    return tables


def _parse_lengths(nibbles: Cursor, symbols: int, max_length: int) -> Table:
    table: Table = {}
    symbol = 0
    while symbol < symbols:
        length = nibbles.byte()
        if length > max_length:
            raise Malformed(f"a code of {length} bits, more than {max_length}")
        if length:
            table[symbol] = length
            symbol += 1
        else:
            symbol += _parse_run(nibbles)
    if symbol > symbols:
        raise Malformed("a run passes the end of the alphabet")
    used = sum(1 << max_length - length for length in table.values())
    if list(table.values()) != [1] and used != 1 << max_length:
        raise Malformed("a table that is not complete")
    return table


def _parse_run(nibbles: Cursor) -> int:
    run = 0
    for shift in range(0, 18, 3):
        nibble = nibbles.byte()
        run |= (nibble & 7) << shift
        if nibble < 8:
            if nibble == 0 and shift:
                raise Malformed("a run in more groups than it needs")
            return run + 1
    raise Malformed("a run passes the end of the alphabet")


def huffman_item(tables: Sequence[Table], bits: int) -> bytes:
    """The huffman shared part of tables of code lengths."""
    nibbles: list[int] = []
    for table in tables:
        for before, symbol in pairwise([-1, *sorted(table), 1 << bits]):
            nibbles += _run_nibbles(symbol - before - 1)
            if symbol in table:
                nibbles.append(table[symbol])
    nibbles += [0] * (len(nibbles) % 2)
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))


def _run_nibbles(run: int) -> list[int]:
    if not run:
        return []
    rest = run - 1
    nibbles = [0, rest & 7]
    while rest := rest >> 3:
        nibbles[-1] |= 8
        nibbles.append(rest & 7)
    return nibbles


def code_lengths(histogram: Counter[int], max_length: int) -> Table:
    """Optimal code lengths of at most `max_length` bits, by package-merge; raises NotApplicable."""
    if len(histogram) > 1 << max_length:
        raise NotApplicable(f"{len(histogram)} symbols for codes of {max_length} bits")
    if len(histogram) < 2:
        return dict.fromkeys(histogram or [0], 1)
    leaves: list[tuple[int, tuple[int, ...]]]
    leaves = sorted((times, (symbol,)) for symbol, times in histogram.items())
    level = leaves
    for _ in range(max_length - 1):
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = sorted(leaves + packages, key=lambda package: package[0])
    chosen = level[: 2 * len(leaves) - 2]
    lengths = Counter(symbol for _, symbols in chosen for symbol in symbols)
    return dict(sorted(lengths.items()))


# rANS


@dataclass(frozen=True)
class _Slots:
    """The slots of a table: the symbol and rank that each stands for, and those of each symbol by rank."""

    stands_for: list[tuple[int, int]]
    of: dict[int, list[int]]


def deal_slots(table: Table, prob_bits: int) -> _Slots:
    """The slots of a table as docs/format.md deals them, in buckets or in strides."""
    dealt = _in_buckets(table, prob_bits) if len(table) <= BUCKETS else _in_strides(table, prob_bits)
    stands_for = {slot: (symbol, rank) for symbol in table for rank, slot in enumerate(dealt[symbol])}
    return _Slots([stands_for[slot] for slot in range(1 << prob_bits)], dealt)


def _in_buckets(table: Table, prob_bits: int) -> dict[int, list[int]]:
    symbols = sorted(table, key=lambda symbol: (-table[symbol], symbol))
    size = (1 << prob_bits) // BUCKETS
    own = [table[symbol] for symbol in symbols] + [0] * (BUCKETS - len(symbols))
    excess, given = [max(0, each - size) for each in own], [0] * BUCKETS
    alias: dict[int, int] = {}
    while low := [i for i in range(BUCKETS) if i not in alias and own[i] < size]:
        givers = [k for k in range(BUCKETS) if k not in alias and own[k] > size]
        giver = min(givers, key=lambda k: (Fraction(given[k] + size, excess[k]), k))
        alias[low[0]] = giver
        own[giver] -= size - own[low[0]]
        given[giver] += size - own[low[0]]
    dealt = {symbol: [i * size + j for j in range(own[i])] for i, symbol in enumerate(symbols)}
    for i in sorted(alias):
        dealt[symbols[alias[i]]] += [i * size + j for j in range(own[i], size)]
    return dealt


def _in_strides(table: Table, prob_bits: int) -> dict[int, list[int]]:
    slots = 1 << prob_bits
    stride = slots // 2 + slots // 8 + 3
    at, dealt = 0, {}
    for symbol, frequency in table.items():
        dealt[symbol] = sorted((at + k * stride) % slots for k in range(frequency))
        at += frequency * stride
    return dealt


def _read_rans(cursor: Cursor, encoding: Rans, tables: Tables, lo: int, hi: int) -> list[int]:
    chosen = _read_classes(cursor, encoding, tables, lo, hi)
    least = 1 << encoding.prob_bits
    states = [int.from_bytes(cursor.take(4), "little") for _ in range(encoding.lanes)]
    if not all(least <= state < least << 16 for state in states):
        raise Malformed("a lane's state is out of range")
    dealt = {id(table): deal_slots(table, encoding.prob_bits) for table in tables.each}
    words: list[int] = []
    for i, table in zip(chosen.places(), chosen.tables_in_order(), strict=True):
        state = states[i % encoding.lanes]
        symbol, rank = dealt[id(table)].stands_for[state % least]
        state = table[symbol] * (state >> encoding.prob_bits) + rank
        if state < least:
            state = state << 16 | int.from_bytes(cursor.take(2), "little")
        states[i % encoding.lanes] = state
        words.append(symbol)
    cursor.end()
    if any(state != least for state in states):
        raise Malformed("a lane does not end where it began")
    return _in_place(chosen.order(), words)


def _rans_item(encoding: Rans, tables: Tables, lo: int, words: list[int]) -> bytes:
    classes, chosen = _choose_classes(encoding, tables, lo, words, lambda f: -math.log2(f))
    dealt = {id(table): deal_slots(table, encoding.prob_bits) for table in tables.each}
    states = [1 << encoding.prob_bits] * encoding.lanes
    spilled: list[int] = []
    coded = list(zip(chosen.order(), chosen.places(), chosen.tables_in_order(), strict=True))
    for position, place, table in reversed(coded):
        word = words[position]
        lane = place % encoding.lanes
        frequency, state = table[word], states[lane]
        if state >= frequency << 16:
            spilled.append(state & 0xFFFF)
            state >>= 16
        quotient, rank = divmod(state, frequency)
        states[lane] = (quotient << encoding.prob_bits) + dealt[id(table)].of[word][rank]
    heads = b"".join(state.to_bytes(4, "little") for state in states)
    return classes + heads + b"".join(low.to_bytes(2, "little") for low in reversed(spilled))


def parse_frequencies(encoding: Rans | Tunstall, bits: int, cursor: Cursor) -> list[Table]:
    """The tables of a rans or tunstall shared part; raises Malformed."""
    tables: list[Table] = []
    for _ in range(encoding.tables):
        table: Table = {}
        symbol = 0
        while symbol < 1 << bits:
            frequency = cursor.varint()
            if frequency:
                table[symbol] = frequency
            symbol += 1 if frequency else cursor.varint() + 1
        if symbol > 1 << bits:
            raise Malformed("a run passes the end of the alphabet")
        if sum(table.values()) != 1 << encoding.prob_bits:
            raise Malformed(f"frequencies that do not sum to 2^{encoding.prob_bits}")
        if isinstance(encoding, Tunstall) and len(table) > 1 << encoding.bits:
            raise Malformed(f"{len(table)} symbols for codewords of {encoding.bits} bits")
        tables.append(table)
    cursor.end()
    return tables


def rans_item(tables: Sequence[Table], bits: int) -> bytes:
    """The rans shared part of tables of frequencies."""
    out = bytearray()
    for table in tables:
        for before, symbol in pairwise([-1, *sorted(table), 1 << bits]):
            if run := symbol - before - 1:
                out += varint(0) + varint(run - 1)
            if symbol in table:
                out += varint(table[symbol])
    return bytes(out)


def frequencies(histogram: Counter[int], prob_bits: int) -> Table:
    """Frequencies that sum to 2^prob_bits, each symbol's at least 1; raises NotApplicable."""
    total, target = histogram.total(), 1 << prob_bits
    if len(histogram) > target:
        raise NotApplicable(f"{len(histogram)} symbols for probabilities of {prob_bits} bits")
    if not histogram:
        return {0: target}
    table = {symbol: max(1, times * target // total) for symbol, times in sorted(histogram.items())}
    excess = sum(table.values()) - target
    for symbol in sorted(table, key=lambda s: -table[s]):
        step = min(max(excess, -target), table[symbol] - 1)
        table[symbol] -= step
        excess -= step
    return table


# Tunstall


def dictionary(encoding: Tunstall, table: Table) -> list[tuple[int, ...]]:
    """The strings of the codewords 0, 1, …"""
    limit = 1 << encoding.bits
    ranked = sorted(table, key=lambda symbol: (-table[symbol], symbol))
    strings: list[tuple[int, ...]] = [(symbol,) for symbol in ranked]
    weights = [table[symbol] << 32 - encoding.prob_bits for symbol in ranked]
    kids = [0] * limit

    def candidate(parent: int) -> tuple[int, int]:
        frequency = table[ranked[kids[parent]]]
        return -(weights[parent] * frequency >> encoding.prob_bits), parent

    candidates = [candidate(parent) for parent in range(len(strings))]
    heapify(candidates)
    while len(strings) < limit and candidates:
        weight, parent = heappop(candidates)
        strings.append((*strings[parent], ranked[kids[parent]]))
        weights.append(-weight)
        kids[parent] += 1
        if kids[parent] < len(ranked):
            heappush(candidates, candidate(parent))
        if len(strings[-1]) < MAX_STRING:
            heappush(candidates, candidate(len(strings) - 1))
    return strings


def _read_tunstall(cursor: Cursor, encoding: Tunstall, tables: Tables, lo: int, hi: int) -> list[int]:
    chosen = _read_classes(cursor, encoding, tables, lo, hi)
    count = cursor.varint()
    if count > hi - lo:
        raise Malformed(f"{count} codewords for {hi - lo} words")
    codewords = iter(unsliced(cursor.take(sliced_size(count, encoding.bits)), count, encoding.bits))
    cursor.end()
    words: list[int] = []
    for table, run in zip(chosen.tables, chosen.runs, strict=True):
        strings = dictionary(encoding, table) if run else []
        end = len(words) + len(run)
        while len(words) < end:
            codeword = next(codewords, len(strings))
            if codeword >= len(strings):
                raise Malformed("a codeword is missing or stands for nothing")
            words += strings[codeword]
        if len(words) > end:
            raise Malformed("a codeword passes the end of its class")
    if next(codewords, None) is not None:
        raise Malformed("codewords left over")
    return _in_place(chosen.order(), words)


def _tunstall_item(encoding: Tunstall, tables: Tables, lo: int, words: list[int]) -> bytes:
    classes, chosen = _choose_classes(encoding, tables, lo, words, lambda f: -math.log2(f))
    codewords: list[int] = []
    for table, run in zip(chosen.tables, chosen.runs, strict=True):
        numbers = {string: i for i, string in enumerate(dictionary(encoding, table))} if run else {}
        rest = [words[position] for position in run]
        quarter = len(rest) // 4
        for part in range(4):
            codewords += _longest_strings(numbers, rest[part * quarter : (part + 1) * quarter])
        codewords += [numbers[(word,)] for word in rest[4 * quarter :]]
    return classes + varint(len(codewords)) + sliced(codewords, encoding.bits)


def _longest_strings(numbers: dict[tuple[int, ...], int], words: list[int]) -> Iterator[int]:
    at = 0
    while at < len(words):
        end = at + 1
        while end < len(words) and tuple(words[at : end + 1]) in numbers:
            end += 1
        yield numbers[tuple(words[at:end])]
        at = end


# Building shared parts


def _build(node: Node, bits: int, count: int, pieces: Pieces, items: list[bytes]) -> None:
    """Appends the shared parts below `node`, whose stream's blocks hold `pieces`, in prefix order."""
    match node:
        case Lit(Huffman() as encoding):
            tables = [code_lengths(each, encoding.max_length) for each in _histograms(encoding, pieces)]
            items.append(_usual_pairs(encoding) + huffman_item(tables, bits))
        case Lit(Rans() | Tunstall() as encoding):
            tables = [frequencies(each, encoding.prob_bits) for each in _histograms(encoding, pieces)]
            items.append(_usual_pairs(encoding) + rans_item(tables, bits))
        case Repeat(times, child):
            _build_period(child, bits, count // times, pieces, items)
        case Map(function, child):
            mapped = [(lo, [invert(function, bits, word) for word in words]) for lo, words in pieces]
            _build(child, bits, count, mapped, items)
        case Transpose(columns, child):
            turned = [(lo, by_columns(columns, words)) for lo, words in pieces]
            _build(child, bits, count, turned, items)
        case Scan(_, child):
            scanned = [(lo, changes(node, bits, words)) for lo, words in pieces]
            _build(child, bits, count - 1, scanned, items)
        case Palette(table, child):
            placed = [(lo, places_of(node, words)) for lo, words in pieces]
            _build(child, index_bits(len(table)), count, placed, items)
        case Concat() | Merge() | Select():
            parts = [split(node, bits, lo, words) for lo, words in pieces]
            for i, (child, width, length) in enumerate(children(node, bits, count)):
                _build(child, width, length, [part[i][1:] for part in parts], items)
        case _:
            pass


def _build_period(child: Node, bits: int, length: int, pieces: Pieces, items: list[bytes]) -> None:
    seen: dict[int, int] = {}
    for lo, words in pieces:
        for i, word in enumerate(words, lo):
            if seen.setdefault(i % length, word) != word:
                raise NotApplicable(f"the words do not repeat every {length}")
    # What a Scan above leaves out at the edges of blocks may leave a place open; the last word fills it.
    period: list[int] = []
    for i in range(length):
        period.append(seen.get(i, period[-1] if period else 0))
    below: list[bytes] = []
    _build(child, bits, length, [(0, period)], below)
    payload = encode_block(child, bits, length, length, 0, b"".join(item(each) for each in below), period)
    items += [payload, *below]


def _histograms(encoding: Coded, pieces: Pieces) -> list[Counter[int]]:
    histograms: list[Counter[int]] = [Counter() for _ in range(encoding.tables)]
    for lo, words in pieces:
        for i, word in enumerate(words, lo):
            histograms[usual_table(encoding, i)][word] += 1
    return histograms


def usual_table(encoding: Coded, position: int) -> int:
    """The table that `build_shared` counts a word towards.

    Classes of rows, classes of columns, and tables of pairs are dealt in turn.
    """
    row = _segment(encoding, position) % _row_classes(encoding)
    if not encoding.columns:
        return row
    column = _place(encoding, position) % encoding.columns
    return (row * encoding.columns + column) % encoding.tables


def _usual_pairs(encoding: Coded) -> bytes:
    places = [place % encoding.columns for place in range(encoding.segment)] if encoding.columns else []
    pairs = [pair % encoding.tables for pair in range(encoding.rows * encoding.columns)]
    return pairs_item(encoding, places, pairs)
