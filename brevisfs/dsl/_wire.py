"""The binary form of programs, as docs/format.md gives it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

from brevisfs.dsl._check import Budget, ProgramError, UnknownOperator, check
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
    ScanKind,
    Select,
    Sparse,
    Transpose,
    Tunstall,
    Xor,
    ZigZag,
    Zstd,
)

SCAN_KINDS: tuple[ScanKind, ...] = ("xor", "add")


def to_wire(node: Node) -> bytes:
    """The binary form of a program that `check` accepts."""
    code, body = _body(node)
    return bytes([code]) + item(body)


def from_wire(data: bytes, bits: int, count: int) -> Node:
    """The program of a stream of `count` words of `bits` bits that `data` is the binary form of.

    Raises UnknownOperator for an operator or Lit encoding of a later version, ProgramError for anything else
    that is not a valid program of that type.
    """
    node = _one_node(Cursor(bytes(data)), "root", 0, Budget())
    check(node, bits, count)
    return node


def _body(node: Node) -> tuple[int, bytes]:
    match node:
        case Lit(encoding):
            return 1, _encoding_bytes(encoding)
        case Const(word):
            return 2, varint(word)
        case Concat(lengths, parts):
            sizes = b"".join(varint(length) for length in lengths)
            return 3, varint(len(parts)) + sizes + b"".join(to_wire(part) for part in parts)
        case Repeat(times, child):
            return 4, varint(times) + to_wire(child)
        case Map(function, child):
            return 5, _function_bytes(function) + to_wire(child)
        case Transpose(columns, child):
            return 10, varint(columns) + to_wire(child)
        case Palette(words, child):
            gaps = [after - before - 1 for before, after in pairwise(words)]
            return 8, b"".join(map(varint, (len(words), words[0], *gaps))) + to_wire(child)
        case Select(word, mask, child):
            return 9, varint(word) + to_wire(mask) + to_wire(child)
        case Scan(kind, child):
            return 6, bytes([SCAN_KINDS.index(kind)]) + to_wire(child)
        case Merge(widths, parts):
            return 7, varint(len(parts)) + bytes(widths) + b"".join(to_wire(part) for part in parts)


def _encoding_bytes(encoding: Encoding) -> bytes:
    match encoding:
        case Raw():
            return bytes([0])
        case Pack(bits, base):
            return bytes([1, bits]) + varint(base)
        case Huffman(streams, max_length):
            return bytes([2, streams, max_length]) + _tables_bytes(encoding)
        case Rans(lanes, prob_bits):
            return bytes([3, lanes, prob_bits]) + _tables_bytes(encoding)
        case Zstd():
            return bytes([4])
        case Sparse(base):
            return bytes([5]) + varint(base)
        case Tunstall(bits, prob_bits):
            return bytes([6, bits, prob_bits]) + _tables_bytes(encoding)


def _tables_bytes(encoding: Coded) -> bytes:
    if encoding.tables == 1:
        return varint(1)
    sizes = (encoding.tables, encoding.segment, encoding.columns, *[encoding.rows] * (encoding.columns > 0))
    return b"".join(map(varint, sizes))


def _function_bytes(function: Function) -> bytes:
    match function:
        case Xor(word):
            return bytes([0]) + varint(word)
        case Add(word):
            return bytes([1]) + varint(word)
        case ZigZag():
            return bytes([2])
        case Gray():
            return bytes([3])
        case BitReverse():
            return bytes([4])
        case RotR(places):
            return bytes([5, places])


def _one_node(data: Cursor, path: str, depth: int, budget: Budget) -> Node:
    """The node that `data` holds and nothing else."""
    try:
        node = _next_node(data, path, depth, budget)
        data.end()
    except Malformed as error:
        raise ProgramError(path, str(error)) from None
    return node


def _next_node(data: Cursor, path: str, depth: int, budget: Budget) -> Node:
    code = data.byte()
    body = data.item()
    if code not in _PARSERS:
        raise UnknownOperator(path, "operator", code)
    name, parse = _PARSERS[code]
    path = f"{path}.{name}"
    budget.enter(path, depth)
    try:
        node = parse(body, path, depth + 1, budget)
        body.end()
    except Malformed as error:
        raise ProgramError(path, str(error)) from None
    return node


def _parts(body: Cursor, count: int, path: str, depth: int, budget: Budget) -> tuple[Node, ...]:
    return tuple(_next_node(body, f"{path}[{i}]", depth, budget) for i in range(count))


def _lit(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    match body.byte():
        case 0:
            return Lit(Raw())
        case 1:
            return Lit(Pack(body.byte(), body.varint()))
        case 2:
            return Lit(Huffman(body.byte(), body.byte(), *_tables(body)))
        case 3:
            return Lit(Rans(body.byte(), body.byte(), *_tables(body)))
        case 4:
            return Lit(Zstd())
        case 5:
            return Lit(Sparse(body.varint()))
        case 6:
            return Lit(Tunstall(body.byte(), body.byte(), *_tables(body)))
        case code:
            raise UnknownOperator(path, "encoding", code)


def _tables(body: Cursor) -> tuple[int, int, int, int]:
    """Tables, segment length, classes of rows and of columns."""
    tables = body.varint()
    if tables == 1:
        return 1, 0, 0, 0
    segment, columns = body.varint(), body.varint()
    return tables, segment, body.varint() if columns else 0, columns


def _const(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    return Const(body.varint())


def _concat(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    parts = body.varint()
    if parts > body.left:
        raise Malformed(f"{parts} lengths announced where {body.left} bytes are left")
    lengths = tuple(body.varint() for _ in range(parts))
    return Concat(lengths, _parts(body, parts, path, depth, budget))


def _repeat(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    return Repeat(body.varint(), _next_node(body, path, depth, budget))


def _map(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    return Map(_function(body), _next_node(body, path, depth, budget))


def _function(body: Cursor) -> Function:
    match body.byte():
        case 0:
            return Xor(body.varint())
        case 1:
            return Add(body.varint())
        case 2:
            return ZigZag()
        case 3:
            return Gray()
        case 4:
            return BitReverse()
        case 5:
            return RotR(body.byte())
        case code:
            raise Malformed(f"map function {code} does not exist")


def _scan(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    kind = body.byte()
    if kind >= len(SCAN_KINDS):
        raise Malformed(f"scan kind {kind} does not exist")
    return Scan(SCAN_KINDS[kind], _next_node(body, path, depth, budget))


def _merge(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    parts = body.varint()
    widths = tuple(body.take(parts))
    return Merge(widths, _parts(body, parts, path, depth, budget))


def _palette(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    size = body.varint()
    if not 0 < size <= body.left:
        raise Malformed(f"{size} words announced where {body.left} bytes are left")
    gaps = [body.varint() for _ in range(size)]
    words = accumulate(gaps, lambda before, gap: before + gap + 1)
    return Palette(tuple(words), _next_node(body, path, depth, budget))


def _select(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    return Select(body.varint(), *_parts(body, 2, path, depth, budget))


def _transpose(body: Cursor, path: str, depth: int, budget: Budget) -> Node:
    return Transpose(body.varint(), _next_node(body, path, depth, budget))


_PARSERS: dict[int, tuple[str, Callable[[Cursor, str, int, Budget], Node]]] = {
    1: ("lit", _lit),
    2: ("const", _const),
    3: ("concat", _concat),
    4: ("repeat", _repeat),
    5: ("map", _map),
    6: ("scan", _scan),
    7: ("merge", _merge),
    8: ("palette", _palette),
    9: ("select", _select),
    10: ("transpose", _transpose),
}
