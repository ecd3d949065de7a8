"""The text form: how programs read, and what the parser says about text that is none."""

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
    Xor,
    ZigZag,
    Zstd,
    parse_text,
    to_text,
)

RAW = Lit(Raw())


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (
            Map(RotR(1), Merge((8, 8), (Lit(Huffman(5, 11)), RAW))),
            "Map(rotr 1, Merge(8: Lit huffman(max=11, streams=5), 8: Lit raw))",
        ),
        (Concat((3000, 96), (Const(0), RAW)), "Concat(3000: Const 0, 96: Lit raw)"),
        (Scan("add", Const(1)), "Scan(add, Const 1)"),
        (Scan("xor", Lit(Zstd())), "Scan(xor, Lit zstd)"),
        (Repeat(12, RAW), "Repeat(12, Lit raw)"),
        (Lit(Pack(9, 0)), "Lit pack(9, base=0)"),
        (Lit(Pack(9, 0x3F80)), "Lit pack(9, base=0x3f80)"),
        (Lit(Huffman(5, 11, 8, 384)), "Lit huffman(max=11, streams=5, tables=8, segment=384)"),
        (Lit(Rans(32, 12)), "Lit rans(lanes=32, prob=12)"),
        (Lit(Rans(32, 12, 2, 16)), "Lit rans(lanes=32, prob=12, tables=2, segment=16)"),
        (
            Lit(Rans(32, 12, 5, 384, 4, 3)),
            "Lit rans(lanes=32, prob=12, tables=5, segment=384, rows=4, columns=3)",
        ),
        (Lit(Sparse(0)), "Lit sparse(base=0)"),
        (Map(Xor(0x80), RAW), "Map(xor 0x80, Lit raw)"),
        (Map(Add(9), RAW), "Map(add 9, Lit raw)"),
        (Map(ZigZag(), Map(Gray(), Map(BitReverse(), RAW))), "Map(zigzag, Map(gray, Map(bitrev, Lit raw)))"),
        (Palette((0, 1, 0x3C00), RAW), "Palette(0, 1, 0x3c00: Lit raw)"),
        (Select(0x80, Lit(Zstd()), RAW), "Select(0x80, Lit zstd, Lit raw)"),
    ],
)
def test_text(node: Node, text: str) -> None:
    assert to_text(node) == text
    assert parse_text(text) == node


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("\n Merge (\n  8 : Lit raw ,\n  8:Const 0xFF\n)\n", Merge((8, 8), (RAW, Const(255)))),
        ("Lit huffman(segment=384, tables=8, streams=5, max=11)", Lit(Huffman(5, 11, 8, 384))),
        ("Const 18446744073709551615", Const((1 << 64) - 1)),
    ],
)
def test_parser_is_lenient_about_layout(text: str, node: Node) -> None:
    assert parse_text(text) == node


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^root: character 1: an operator \(Lit, Const, .*\) expected, not the end$"),
        ("lit raw", "^root: character 1: an operator .* not 'lit'$"),
        ("Lit", r"^root\.lit: character 4: an encoding \(raw, .*\) expected, not the end$"),
        ("Lit raw)", r"^root\.lit: character 8: the end expected, not '\)'$"),
        ("Lit pack(9)", r"^root\.lit: character 11: ',' expected"),
        ("Lit pack(9, base=)", r"^root\.lit: character 18: a number below 2\^64 expected"),
        ("Lit rans(lanes=32)", r"^root\.lit: character 18: prob= expected"),
        ("Lit rans(lanes=32, lanes=3)", r"^root\.lit: character 20: a setting \(prob, tables, segment, "),
        ("Const 18446744073709551616", r"^root\.const: character 7: a number below 2\^64 expected"),
        ("Const -1", r"^root\.const: character 7: a number below 2\^64 expected, not '-'$"),
        ("Const ٣", r"^root\.const: character 7: a number"),
        ("Const " + "1" * 10_000, r"^root\.const: character 7: a number below 2\^64 expected, not '1{20}'$"),
        ("Map(rotate 1, Lit raw)", r"^root\.map: character 5: a function"),
        ("Map(xor 1 Lit raw)", r"^root\.map: character 11: ',' expected, not 'Lit'$"),
        ("Scan(sub, Lit raw)", r"^root\.scan: character 6: an update \(xor, add\) expected, not 'sub'$"),
        ("Merge(8: Lit raw, 8: Lit rw)", r"^root\.merge\[1\]\.lit: character 26: an encoding"),
        ("Palette(0 1: Lit raw)", r"^root\.palette: character 11: ',' expected, not '1'$"),
        ("Palette(0, 1, Lit raw)", r"^root\.palette: character 15: a number below 2\^64 expected"),
        ("Select(0, Lit raw, Lit rw)", r"^root\.select\[1\]\.lit: character 24: an encoding"),
        ("Select(0, Lit rw, Lit raw)", r"^root\.select\[0\]\.lit: character 15: an encoding"),
        ("Select(0, Lit raw)", r"^root\.select: character 18: ',' expected, not '\)'$"),
        ("Merge(8: Lit raw; 8: Lit raw)", r"^root\.merge: character 17: '\)' expected, not ';'$"),
        ("Map(gray, " * 100_000, r"^root(\.map){6}: deeper than 4 below the root$"),
        ("Concat(" + "1: Lit raw, " * 200, "more than 128 nodes$"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse_text(text)
