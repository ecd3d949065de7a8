"""The type rules and limits: what `check` and the native parser take and refuse, and which node is named."""

import pytest

from brevisfs._native import Analysis, ProgramRefused
from brevisfs.dsl import (
    Add,
    BitReverse,
    Concat,
    Const,
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
    Tunstall,
    Xor,
    ZigZag,
    Zstd,
    check,
    to_wire,
    walk,
)

RAW = Lit(Raw())


def take(node: Node, bits: int, count: int) -> None:
    """Both take the program."""
    check(node, bits, count)
    if bits * count % 8 == 0:
        Analysis(to_wire(node), bits, count, 64)


def refuse(node: Node, bits: int, count: int, reason: str) -> None:
    """Both refuse the program, `check` with an error that matches."""
    with pytest.raises(ProgramError, match=reason):
        check(node, bits, count)
    with pytest.raises(ProgramRefused):
        Analysis(to_wire(node), bits, count, 64)


@pytest.mark.parametrize(
    ("node", "bits", "count"),
    [
        (RAW, 1, 1),
        (RAW, 64, (1 << 58) - 1),
        (Const((1 << 64) - 1), 64, 5),
        (Concat((1, 2), (RAW, Const(0))), 7, 3),
        (Repeat(3, RAW), 8, 3 << 20),
        (Map(RotR(1), RAW), 2, 1),
        (Map(ZigZag(), Map(Gray(), Map(BitReverse(), Map(Xor(1), RAW)))), 1, 1),
        (Map(Add(255), RAW), 8, 9),
        (Scan("xor", RAW), 8, 2),
        (Merge((1, 63), (RAW, RAW)), 64, 4),
        (Merge((1,) * 64, (RAW,) * 64), 64, 4),
        (Lit(Pack(0, 255)), 8, 1),
        (Lit(Huffman(16, 15, 21, 16)), 16, 100),
        (Lit(Huffman(1, 1)), 1, 100),
        (Lit(Rans(64, 14, 25, 1000)), 16, 100),
        (Lit(Huffman(16, 11, 64, 16)), 8, 100),
        (Lit(Zstd()), 64, 1),
        (Lit(Sparse(3)), 2, 1),
        (Concat((1,) * 127, (RAW,) * 127), 8, 127),
        (Palette((0, 255), RAW), 8, 1),
        (Palette(tuple(range(4096)), Const(4095)), 12, 1),
        (Palette((1, 2, (1 << 64) - 1), Merge((1, 1), (RAW, RAW))), 64, 1),
        (Select(3, Const(1), Const(2)), 2, 1),
        (Select(0, Lit(Huffman(1, 1)), Select(1, RAW, RAW)), 64, 9),
    ],
)
def test_valid(node: Node, bits: int, count: int) -> None:
    take(node, bits, count)


@pytest.mark.parametrize(
    ("node", "bits", "count", "path"),
    [
        (RAW, 0, 1, "root"),
        (RAW, 65, 1, "root"),
        (RAW, 8, 0, "root"),
        (RAW, 1, 1 << 58, "root"),
        (Const(256), 8, 1, "root.const"),
        (Const(-1), 8, 1, "root.const"),
        (Concat((3,), (RAW,)), 8, 3, "root.concat"),
        (Concat((3, 1), (RAW,)), 8, 4, "root.concat"),
        (Concat((0, 3), (RAW, RAW)), 8, 3, "root.concat"),
        (Concat((2, 2), (RAW, RAW)), 8, 3, "root.concat"),
        (Concat((), ()), 8, 3, "root.concat"),
        (Repeat(1, RAW), 8, 3, "root.repeat"),
        (Repeat(2, RAW), 8, 3, "root.repeat"),
        (Repeat(4, RAW), 8, 2, "root.repeat"),
        (Repeat(2, RAW), 8, 2 * (1 << 20) + 2, "root.repeat"),
        (Map(Xor(0), RAW), 8, 1, "root.map"),
        (Map(Add(256), RAW), 8, 1, "root.map"),
        (Map(RotR(0), RAW), 8, 1, "root.map"),
        (Map(RotR(8), RAW), 8, 1, "root.map"),
        (Map(RotR(1), RAW), 1, 1, "root.map"),
        (Scan("add", RAW), 8, 1, "root.scan"),
        (Scan("sub", RAW), 8, 2, "root.scan"),  # type: ignore[arg-type]
        (Merge((8,), (RAW,)), 8, 1, "root.merge"),
        (Merge((0, 8), (RAW, RAW)), 8, 1, "root.merge"),
        (Merge((4, 5), (RAW, RAW)), 8, 1, "root.merge"),
        (Merge((4, 4), (RAW, RAW, RAW)), 8, 1, "root.merge"),
        (Lit(Pack(8, 0)), 8, 1, "root.lit"),
        (Lit(Pack(1, 256)), 8, 1, "root.lit"),
        (Lit(Sparse(256)), 8, 1, "root.lit"),
        (Lit(Huffman(0, 11)), 8, 1, "root.lit"),
        (Lit(Huffman(17, 11)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 0)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 16)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 0)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 65, 16)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 1, 16)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 15)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 1 << 62)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 1, 0, 1, 2)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 16, 0, 2)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 16, 65, 2)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 16, 2, 0)), 8, 1, "root.lit"),
        (Lit(Rans(1, 12, 2, 16, 2, 1)), 8, 1, "root.lit"),
        (Lit(Tunstall(8, 12, 2, 16, 2, 17)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11, 2, 65537, 2, 2)), 8, 1, "root.lit"),
        (Lit(Huffman(1, 11)), 17, 1, "root.lit"),
        (Lit(Rans(0, 11)), 8, 1, "root.lit"),
        (Lit(Rans(65, 11)), 8, 1, "root.lit"),
        (Lit(Rans(1, 7)), 8, 1, "root.lit"),
        (Lit(Rans(1, 15)), 8, 1, "root.lit"),
        (Lit(Rans(1, 12)), 17, 1, "root.lit"),
        (Palette((0,), Const(0)), 8, 1, "root.palette"),
        (Palette((), Const(0)), 8, 1, "root.palette"),
        (Palette(tuple(range(4097)), RAW), 13, 1, "root.palette"),
        (Palette((1, 1), RAW), 8, 1, "root.palette"),
        (Palette((-1, 1), RAW), 8, 1, "root.palette"),
        (Palette((1, 256), RAW), 8, 1, "root.palette"),
        (Palette((1, 2, 3), Const(4)), 8, 1, "root.palette.const"),
        (Select(4, RAW, RAW), 2, 1, "root.select"),
        (Select(0, Const(2), RAW), 8, 1, "root.select[0].const"),
        (Select(0, RAW, Const(4)), 2, 1, "root.select[1].const"),
        (Merge((8, 8), (Lit(Pack(8, 0)), RAW)), 16, 1, "root.merge[0].lit"),
        (Merge((8, 8), (RAW, Map(Gray(), Const(256)))), 16, 1, "root.merge[1].map.const"),
        (Concat((1, 2), (RAW, Scan("add", Scan("add", RAW)))), 8, 3, "root.concat[1].scan.scan"),
    ],
)
def test_refused(node: Node, bits: int, count: int, path: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(node, bits, count)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("node", "bits"),
    [
        (Const(256), 8),
        (Concat((7, 2), (RAW, RAW)), 8),
        (Repeat(1, RAW), 8),
        (Repeat(3, RAW), 8),
        (Map(Xor(0), RAW), 8),
        (Map(Add(256), RAW), 8),
        (Map(RotR(0), RAW), 8),
        (Map(RotR(8), RAW), 8),
        (Merge((8,), (RAW,)), 8),
        (Merge((4, 5), (RAW, RAW)), 8),
        (Lit(Pack(8, 0)), 8),
        (Lit(Pack(1, 256)), 8),
        (Lit(Sparse(256)), 8),
        (Lit(Huffman(0, 11)), 8),
        (Lit(Huffman(17, 11)), 8),
        (Lit(Huffman(1, 16)), 8),
        (Lit(Huffman(1, 11, 65, 16)), 8),
        (Lit(Huffman(1, 11, 2, 15)), 8),
        (Lit(Huffman(1, 11, 2, 1 << 62)), 8),
        (Lit(Huffman(1, 11, 2, 16, 0, 2)), 8),
        (Lit(Huffman(1, 11, 2, 16, 65, 2)), 8),
        (Lit(Rans(1, 12, 2, 16, 2, 1)), 8),
        (Lit(Tunstall(8, 12, 2, 16, 2, 17)), 8),
        (Lit(Huffman(1, 11, 2, 65537, 2, 2)), 8),
        (Lit(Huffman(1, 11)), 17),
        (Lit(Rans(65, 11)), 8),
        (Lit(Rans(1, 7)), 8),
        (Lit(Rans(1, 15)), 8),
        (Lit(Rans(1, 12)), 17),
        (Palette(tuple(range(4097)), RAW), 16),
        (Palette((1, 256), RAW), 8),
        (Select(256, RAW, RAW), 8),
        (Merge((8, 8), (RAW, Map(Gray(), Const(256)))), 16),
    ],
)
def test_refused_natively_too(node: Node, bits: int) -> None:
    refuse(node, bits, 8, "root")


def chain(depth: int) -> Node:
    node: Node = RAW
    for _ in range(depth):
        node = Map(Gray(), node)
    return node


def test_depth() -> None:
    take(chain(4), 8, 1)
    refuse(chain(5), 8, 1, r"^root\.map\.map\.map\.map\.map\.lit: deeper than 4")


def test_nodes() -> None:
    last = Map(Gray(), RAW)
    take(Concat((1,) * 126, (*(RAW,) * 125, last)), 8, 126)
    refuse(Concat((1,) * 128, (RAW,) * 128), 8, 128, r"^root\.concat\[127\]\.lit: more than 128 nodes")
    refuse(Concat((1,) * 127, (*(RAW,) * 126, last)), 8, 127, "more than 128 nodes")


def test_periods_share_one_limit() -> None:
    period = 1 << 20

    def repeats(parts: int) -> Node:
        return Concat((2 * period,) * parts, (Repeat(2, RAW),) * parts)

    take(repeats(2), 64, 4 * period)
    take(repeats(4), 32, 8 * period)
    refuse(repeats(3), 33, 6 * period, r"^root\.concat\[2\]\.repeat: periods above")


def test_tables_share_one_limit() -> None:
    wide, small = Lit(Huffman(1, 15, 21, 16)), Lit(Huffman(1, 1))
    take(Concat((8,) * 2, (wide, Merge((1,) * 16, (small,) * 15 + (RAW,)))), 16, 16)
    many = Concat((8,) * 2, (wide, Merge((1,) * 16, (small,) * 16)))
    refuse(many, 16, 16, r"^root\.concat\[1\]\.merge\[15\]\.lit: decode tables above")
    take(Lit(Rans(1, 8, 31, 16)), 16, 16)
    refuse(Lit(Rans(1, 8, 32, 16)), 16, 16, r"^root\.lit: decode tables above")


def test_classes_of_columns_count_as_tables() -> None:
    columns = Lit(Rans(1, 8, 2, 1 << 16, 1, 16))
    take(Concat((8,) * 32, (*(columns,) * 31, RAW)), 1, 256)
    refuse(Concat((8,) * 32, (columns,) * 32), 1, 256, r"^root\.concat\[31\]\.lit: decode tables above")


def test_walk_is_in_prefix_order_with_types() -> None:
    last = Scan("add", Select(0, RAW, Palette((0, 7), Const(1))))
    node = Merge((5, 3), (Concat((4, 8), (RAW, Repeat(4, RAW))), last))
    assert [(i, d, type(n).__name__, b, c) for i, d, n, b, c in walk(node, 8, 12)] == [
        (0, 0, "Merge", 8, 12),
        (1, 1, "Concat", 5, 12),
        (2, 2, "Lit", 5, 4),
        (3, 2, "Repeat", 5, 8),
        (4, 3, "Lit", 5, 2),
        (5, 1, "Scan", 3, 12),
        (6, 2, "Select", 3, 11),
        (7, 3, "Lit", 1, 11),
        (8, 3, "Palette", 3, 11),
        (9, 4, "Const", 1, 11),
    ]
