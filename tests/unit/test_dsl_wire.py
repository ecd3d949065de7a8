"""The binary form: its bytes, and what reading refuses."""

import pytest

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
    UnknownOperator,
    Xor,
    ZigZag,
    Zstd,
    from_wire,
    to_wire,
)
from brevisfs.errors import ExitCode

RAW = Lit(Raw())

FORMS: list[tuple[Node, int, int, str]] = [
    (RAW, 8, 4, "01 01 00"),
    (Lit(Pack(9, 300)), 16, 4, "01 04 01 09 ac02"),
    (Lit(Huffman(5, 11)), 8, 4, "01 04 02 05 0b 01"),
    (Lit(Huffman(5, 11, 8, 384)), 8, 4, "01 07 02 05 0b 08 8003 00"),
    (Lit(Huffman(5, 11, 8, 384, 4, 3)), 8, 4, "01 08 02 05 0b 08 8003 03 04"),
    (Lit(Rans(32, 12)), 8, 4, "01 04 03 20 0c 01"),
    (Lit(Zstd()), 8, 4, "01 01 04"),
    (Lit(Sparse(7)), 8, 4, "01 02 05 07"),
    (Const((1 << 64) - 1), 64, 4, "02 0a ffffffffffffffffff01"),
    (Concat((1, 300), (Const(0), RAW)), 8, 301, "03 0a 02 01 ac02 02 01 00 01 01 00"),
    (Repeat(12, RAW), 8, 24, "04 04 0c 01 01 00"),
    (Map(Xor(128), RAW), 8, 4, "05 06 00 8001 01 01 00"),
    (Map(Add(1), RAW), 8, 4, "05 05 01 01 01 01 00"),
    (Map(ZigZag(), RAW), 8, 4, "05 04 02 01 01 00"),
    (Map(Gray(), RAW), 8, 4, "05 04 03 01 01 00"),
    (Map(BitReverse(), RAW), 8, 4, "05 04 04 01 01 00"),
    (Map(RotR(3), RAW), 8, 4, "05 05 05 03 01 01 00"),
    (Scan("xor", RAW), 8, 4, "06 04 00 01 01 00"),
    (Scan("add", Const(1)), 8, 4, "06 04 01 02 01 01"),
    (Merge((1, 7), (Const(1), RAW)), 8, 4, "07 09 02 01 07 02 01 01 01 01 00"),
    (Palette((3, 4, 132), Lit(Pack(1, 2))), 8, 4, "08 09 03 03 00 7f 01 03 01 01 02"),
    (Select(0x80, Const(1), RAW), 8, 4, "09 08 8001 02 01 01 01 01 00"),
]


@pytest.mark.parametrize(("node", "bits", "count", "form"), FORMS)
def test_form(node: Node, bits: int, count: int, form: str) -> None:
    assert to_wire(node) == bytes.fromhex(form)
    assert from_wire(bytes.fromhex(form), bits, count) == node


@pytest.mark.parametrize(("node", "bits", "count", "form"), FORMS)
def test_every_shorter_or_longer_form_is_refused(node: Node, bits: int, count: int, form: str) -> None:
    data = bytes.fromhex(form)
    for length in range(len(data)):
        with pytest.raises(ProgramError):
            from_wire(data[:length], bits, count)
    with pytest.raises(ProgramError, match="1 bytes too many"):
        from_wire(data + b"\0", bits, count)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("", "^root: 1 bytes announced where 0 are left"),
        ("01 02 00 00", r"^root\.lit: 1 bytes too many"),
        ("01 81 00 00", "^root: a varint longer than it need be"),
        ("02 02 80 00", r"^root\.const: a varint longer than it need be"),
        ("02 0a ffffffffffffffffff02", r"^root\.const: a varint of 2\^64 or more"),
        ("02 0b ffffffffffffffffffff01", r"^root\.const: a varint of more than 10 bytes"),
        ("01 ffffffffffffffff7f 00", "^root: 9223372036854775807 bytes announced where 1 are left"),
        ("03 0a ffffffffffffffff7f 01", r"^root\.concat: 9223372036854775807 lengths announced"),
        ("07 0a ffffffffffffffff7f 01", r"^root\.merge: 9223372036854775807 bytes announced"),
        ("05 04 06 01 01 00", r"^root\.map: map function 6 does not exist"),
        ("06 04 02 01 01 00", r"^root\.scan: scan kind 2 does not exist"),
        ("08 0a ffffffffffffffff7f 01", r"^root\.palette: 9223372036854775807 words announced"),
        ("08 04 00 01 01 00", r"^root\.palette: 0 words announced"),
        ("08 05 01 07 01 01 00", r"^root\.palette: 1 words, not 2 to 4096"),
        ("08 07 02 01 fe01 01 01 00", r"^root\.palette: 0x100 is not a word of 8 bits"),
        ("06 04 00 01 01 05", r"^root\.scan\.lit: 1 bytes announced where 0 are left"),
        ("02 02 80 02", r"^root\.const: 0x100 is not a word of 8 bits"),
    ],
)
def test_malformed(form: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        from_wire(bytes.fromhex(form), 8, 4)
    assert not isinstance(caught.value, UnknownOperator)
    assert caught.value.exit_code is ExitCode.DAMAGED


@pytest.mark.parametrize(
    ("form", "path", "code"),
    [
        ("0b 02 01 02", "root", 11),
        ("ff 00", "root", 255),
        ("01 03 63 01 02", "root.lit", 0x63),
        ("07 0a 02 04 04 01 01 00 0b 02 01 02", "root.merge[1]", 11),
    ],
)
def test_unknown(form: str, path: str, code: int) -> None:
    with pytest.raises(UnknownOperator) as caught:
        from_wire(bytes.fromhex(form), 8, 4)
    assert (caught.value.path, caught.value.code) == (path, code)
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


def nest(levels: int) -> bytes:
    data = to_wire(RAW)
    for _ in range(levels):
        body = b"\x03" + data
        assert len(body) < 128
        data = bytes([5, len(body)]) + body
    return data


def test_nesting_is_refused_on_the_way_down() -> None:
    from_wire(nest(4), 8, 4)
    with pytest.raises(ProgramError, match="deeper than 4"):
        from_wire(nest(30), 8, 4)


def test_too_many_nodes_are_refused_on_the_way() -> None:
    many = 100_000
    with pytest.raises(ProgramError, match="more than 128 nodes"):
        from_wire(to_wire(Concat((1,) * many, (RAW,) * many)), 8, many)
