"""The type rules and limits of docs/format.md; what passes here has a stream of its type."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from brevisfs.dsl._program import (
    Add,
    Coded,
    Concat,
    Const,
    Encoding,
    Function,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Pack,
    Palette,
    Rans,
    Repeat,
    RotR,
    Scan,
    Select,
    Sparse,
    Transpose,
    Tunstall,
    Xor,
    children,
)
from brevisfs.errors import BrevisError, ExitCode

MAX_NODES = 128
MAX_DEPTH = 4
MAX_BITS = 64
COUNT_END = 1 << 58
MAX_PERIOD = 1 << 20
MAX_REPEATED_BYTES = 16 << 20
MAX_COLUMNS = 1 << 20
MAX_PALETTE = 1 << 12
MAX_TABLE_BYTES = 16 << 20
MAX_CODED_BITS = 16
MAX_TABLES = 64
MIN_SEGMENT = 16
SEGMENT_END = 1 << 62
MAX_PAIRED_SEGMENT = 1 << 16
MAX_ROW_CLASSES = 64
MAX_COLUMN_CLASSES = 16
TABLE_ENTRY_BYTES = PLACE_BYTES = 8
HUFFMAN_INDEX_BITS = 11


class ProgramError(BrevisError):
    """A program breaks a rule. `path` names the node, such as `root.merge[0].lit`."""

    exit_code: ClassVar[ExitCode] = ExitCode.DAMAGED

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class UnknownOperator(ProgramError):
    """An operator or Lit encoding this version does not know; `code` is its number."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNSUPPORTED

    def __init__(self, path: str, what: str, code: int) -> None:
        super().__init__(path, f"{what} {code} is not known to this version")
        self.code = code


@dataclass
class Budget:
    """What the nodes met so far use of the limits of a whole program."""

    nodes: int = 0
    repeated: int = 0
    tables: int = 0

    def enter(self, path: str, depth: int) -> None:
        """Counts one node at `depth`; raises ProgramError when it is one too many or too deep."""
        self.nodes += 1
        _require(self.nodes <= MAX_NODES, path, f"more than {MAX_NODES} nodes")
        _require(depth <= MAX_DEPTH, path, f"deeper than {MAX_DEPTH} below the root")


def container(bits: int) -> int:
    """Bytes a decoded word of `bits` bits is counted with: 1, 2, 4 or 8."""
    return next(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def check(node: Node, bits: int, count: int) -> None:
    """Raises ProgramError unless `node` is a program of a stream of `count` words of `bits` bits."""
    _require(1 <= bits <= MAX_BITS, "root", f"words have 1 to {MAX_BITS} bits, not {bits}")
    _require(1 <= count < COUNT_END, "root", f"a stream has 1 to 2^58 - 1 words, not {count}")
    _check_node(node, bits, count, "root", 0, Budget())


def _require(holds: bool, path: str, reason: str) -> None:
    if not holds:
        raise ProgramError(path, reason)


def _check_node(node: Node, bits: int, count: int, path: str, depth: int, budget: Budget) -> None:
    path = f"{path}.{type(node).__name__.lower()}"
    budget.enter(path, depth)
    match node:
        case Lit(encoding):
            _check_encoding(encoding, bits, path, budget)
        case Const(word):
            _check_word(word, bits, path)
        case Concat(lengths, parts):
            _check_parts(len(lengths), len(parts), path)
            _require(min(lengths) >= 1, path, "a part has no words")
            _require(sum(lengths) == count, path, f"parts of {sum(lengths)} words for a stream of {count}")
        case Merge(widths, parts):
            _check_parts(len(widths), len(parts), path)
            _require(min(widths) >= 1, path, "a field has no bits")
            _require(sum(widths) == bits, path, f"fields of {sum(widths)} bits for words of {bits}")
        case Repeat(times, _):
            _check_repeat(times, bits, count, path, budget)
        case Map(function, _):
            _check_function(function, bits, path)
        case Scan(kind, _):
            _require(kind in ("xor", "add"), path, f"kind {kind!r} is neither xor nor add")
            _require(count >= 2, path, "a scan needs two words or more")
        case Transpose(columns, _):
            _require(2 <= columns <= MAX_COLUMNS, path, f"{columns} columns, not 2 to {MAX_COLUMNS}")
        case Palette(words, _):
            _check_palette(words, bits, path)
        case Select(word, _, _):
            _check_word(word, bits, path)
    parts_of = children(node, bits, count)
    for i, (child, child_bits, child_count) in enumerate(parts_of):
        where = f"{path}[{i}]" if isinstance(node, Concat | Merge | Select) else path
        _check_node(child, child_bits, child_count, where, depth + 1, budget)


def _check_parts(sizes: int, parts: int, path: str) -> None:
    _require(sizes == parts, path, f"{sizes} sizes for {parts} children")
    _require(parts >= 2, path, f"needs two children or more, not {parts}")


def _check_repeat(times: int, bits: int, count: int, path: str, budget: Budget) -> None:
    _require(times >= 2, path, f"repeats twice or more, not {times} times")
    _require(count % times == 0, path, f"{times} does not divide {count} words")
    period = count // times
    _require(period <= MAX_PERIOD, path, f"a period of {period} words, more than {MAX_PERIOD}")
    budget.repeated += period * container(bits)
    _require(budget.repeated <= MAX_REPEATED_BYTES, path, f"periods above {MAX_REPEATED_BYTES} bytes in all")


def _check_palette(words: tuple[int, ...], bits: int, path: str) -> None:
    _require(2 <= len(words) <= MAX_PALETTE, path, f"{len(words)} words, not 2 to {MAX_PALETTE}")
    _require(all(a < b for a, b in pairwise(words)), path, "the words do not ascend")
    _check_word(words[0], bits, path)
    _check_word(words[-1], bits, path)


def _check_word(word: int, bits: int, path: str) -> None:
    _require(0 <= word < 1 << bits, path, f"{word:#x} is not a word of {bits} bits")


def _check_function(function: Function, bits: int, path: str) -> None:
    match function:
        case Xor(word) | Add(word):
            _check_word(word, bits, path)
            _require(word != 0, path, f"{type(function).__name__.lower()} 0 changes nothing")
        case RotR(places):
            _require(1 <= places < bits, path, f"words of {bits} bits cannot be rotated by {places}")
        case _:
            pass


def _check_encoding(encoding: Encoding, bits: int, path: str, budget: Budget) -> None:
    match encoding:
        case Pack(packed, base):
            _require(0 <= packed < bits, path, f"{packed} bits are not fewer than the {bits} of a word")
            _check_word(base, bits, path)
        case Sparse(base):
            _check_word(base, bits, path)
        case Huffman(streams, max_length):
            _require(1 <= streams <= 16, path, f"{streams} streams, not 1 to 16")
            _require(1 <= max_length <= 15, path, f"codes of {max_length} bits, not 1 to 15")
            _check_tables(encoding, max(max_length, HUFFMAN_INDEX_BITS), bits, path, budget)
        case Rans(lanes, prob_bits):
            _require(1 <= lanes <= 64, path, f"{lanes} lanes, not 1 to 64")
            _require(8 <= prob_bits <= 14, path, f"probabilities of {prob_bits} bits, not 8 to 14")
            _check_tables(encoding, prob_bits, bits, path, budget)
        case Tunstall(codeword_bits, prob_bits):
            _require(bits <= 8, path, f"words of {bits} bits, tunstall codes 8 at most")
            _require(8 <= codeword_bits <= 12, path, f"codewords of {codeword_bits} bits, not 8 to 12")
            _require(8 <= prob_bits <= 14, path, f"probabilities of {prob_bits} bits, not 8 to 14")
            _check_tables(encoding, codeword_bits, bits, path, budget)
        case _:
            pass


def _check_tables(encoding: Coded, index_bits: int, bits: int, path: str, budget: Budget) -> None:
    tables, segment = encoding.tables, encoding.segment
    _require(bits <= MAX_CODED_BITS, path, f"words of {bits} bits, coded ones have {MAX_CODED_BITS} at most")
    _require(1 <= tables <= MAX_TABLES, path, f"{tables} tables, not 1 to {MAX_TABLES}")
    if tables == 1:
        _require(segment == 0, path, f"one table, yet segments of {segment} words")
    else:
        in_range = MIN_SEGMENT <= segment < SEGMENT_END
        _require(in_range, path, f"segments of {segment} words, not 16 to 2^62 - 1")
    if encoding.rows or encoding.columns:
        _check_pairs(encoding, path)
        budget.tables += segment * PLACE_BYTES
    budget.tables += tables * TABLE_ENTRY_BYTES * ((1 << index_bits) + (1 << bits))
    _require(budget.tables <= MAX_TABLE_BYTES, path, f"decode tables above {MAX_TABLE_BYTES} bytes in all")


def _check_pairs(encoding: Coded, path: str) -> None:
    rows, columns, segment = encoding.rows, encoding.columns, encoding.segment
    _require(encoding.tables > 1, path, "one table, yet classes of columns")
    _require(1 <= rows <= MAX_ROW_CLASSES, path, f"{rows} classes of rows, not 1 to {MAX_ROW_CLASSES}")
    in_range = 2 <= columns <= MAX_COLUMN_CLASSES
    _require(in_range, path, f"{columns} classes of columns, not 2 to {MAX_COLUMN_CLASSES}")
    fits = segment <= MAX_PAIRED_SEGMENT
    _require(fits, path, f"{segment} columns with classes, more than {MAX_PAIRED_SEGMENT}")
