"""The reference interpreter against bytes worked out by hand from docs/format.md."""

from collections import Counter

import pytest

from brevisfs.dsl import (
    Add,
    BitReverse,
    Function,
    Gray,
    Lit,
    RotR,
    Xor,
    ZigZag,
    Zstd,
    parse_text,
)
from brevisfs.dsl.reference import (
    Malformed,
    NotApplicable,
    apply,
    build_shared,
    code_lengths,
    decode_block,
    encode_block,
    flatten,
    frequencies,
    huffman_item,
    invert,
    rans_item,
    sliced,
    unflatten,
)


@pytest.mark.parametrize(
    ("words", "bits", "flat"),
    [
        ([1, 2, 0xA, 0xF], 4, "21 fa"),
        ([0x0102, 0x0304], 16, "0201 0403"),
        ([5, 3, 1], 3, "5d 00"),  # 001 011 101
        ([1, 0, 1, 1, 0, 0, 0, 0, 1, 1], 1, "0d 03"),
        ([(1 << 63) | 1], 63 + 1, "01000000 00000080"),
    ],
)
def test_flat(words: list[int], bits: int, flat: str) -> None:
    assert flatten(words, bits) == bytes.fromhex(flat)
    assert unflatten(bytes.fromhex(flat), bits)[: len(words)] == words


@pytest.mark.parametrize(
    ("words", "width", "data"),
    [
        ([0x123456], 23, "6824 0a 03 00"),
        ([1, 0, 1, 1, 0, 0, 0, 0, 1, 1], 1, "13 12"),  # even places in one byte, odd ones in the other
        ([1, 2, 3], 4, "31 02"),
        ([1, 2, 3], 0, ""),
        ([0x0102, 0xF304], 12 + 4, "0201 04f3"),
        ([0xABC, 0xDEF], 12, "ab de fc"),
        ([1] * 256 + [0, 1], 1, "ff" * 32 + "02"),
    ],
)
def test_sliced(words: list[int], width: int, data: str) -> None:
    assert sliced(words, width) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("function", "bits", "pairs"),
    [
        (Xor(0x80), 8, [(0, 0x80), (0xFF, 0x7F)]),
        (Add(3), 8, [(0, 3), (0xFE, 1)]),
        (ZigZag(), 8, [(0, 0), (1, 0xFF), (2, 1), (3, 0xFE), (0xFF, 0x80), (0xFE, 0x7F)]),
        (ZigZag(), 1, [(0, 0), (1, 1)]),
        (Gray(), 4, [(0, 0), (1, 1), (3, 2), (2, 3), (6, 4), (8, 15)]),
        (BitReverse(), 5, [(1, 16), (0b01101, 0b10110)]),
        (RotR(1), 8, [(1, 0x80), (0x82, 0x41)]),
        (RotR(5), 6, [(1, 2), (0x20, 1)]),
    ],
)
def test_functions(function: Function, bits: int, pairs: list[tuple[int, int]]) -> None:
    for child, word in pairs:
        assert apply(function, bits, child) == word
        assert invert(function, bits, word) == child


# program, bits, words, shared parts, payload
BLOCKS: list[tuple[str, int, list[int], str, str]] = [
    ("Lit raw", 8, [1, 2, 3], "", "01 02 03"),
    ("Lit pack(4, base=10)", 8, [10, 25, 11], "", "10 0f"),
    ("Lit pack(1, base=255)", 8, [255, 0, 0, 255, 0], "", "16"),
    ("Lit pack(0, base=9)", 8, [9, 9], "", ""),
    ("Lit sparse(base=0)", 8, [0, 5, 0, 0, 7], "", "05 02 01 02 05 07"),
    ("Lit sparse(base=1)", 1, [1, 0, 1, 1, 0], "", "03 02 01 02"),
    ("Lit huffman(max=2, streams=1)", 2, [0, 1, 2], "03 210200", "01 2b"),
    ("Lit huffman(max=9, streams=3)", 8, [0, 0], "03 01fe03", "04 01 01 02 02"),
    (
        "Lit huffman(max=1, streams=1, tables=2, segment=16)",
        1,
        [0] * 16 + [1] * 4,
        "03 010010",
        "04 02 000010",
    ),
    ("Lit rans(lanes=1, prob=8)", 1, [1], "04 8001 8001", "04 04020000"),
    ("Lit rans(lanes=2, prob=8)", 1, [1, 1], "04 8001 8001", "08 04020000 04020000"),
    ("Lit rans(lanes=1, prob=8)", 1, [0] * 16, "04 8001 8001", "06 00010000 0000"),
    ("Lit rans(lanes=1, prob=8)", 2, [2] * 50, "06 0001 8002 0000", "04 00010000"),
    ("Const 7", 8, [7, 7], "", ""),
    ("Concat(1: Lit raw, 2: Lit pack(0, base=9))", 8, [3, 9, 9], "", "03"),
    ("Repeat(3, Lit raw)", 8, [1, 2] * 3, "02 0102", ""),
    (
        "Repeat(2, Merge(4: Repeat(2, Lit raw), 4: Lit huffman(max=1, streams=1)))",
        8,
        [0x13, 0x25, 0x15, 0x23] * 2,
        "02 0116 01 21 05 2001109001",
        "",
    ),
    ("Map(xor 0x80, Lit raw)", 8, [0, 0xFF], "", "80 7f"),
    ("Palette(3, 0x80, 0xff: Lit raw)", 8, [0xFF, 3, 3, 0x80, 0xFF], "", "22 04"),
    ("Select(7, Lit raw, Scan(add, Lit raw))", 8, [1, 7, 7, 3, 6], "", "19 01 02 03"),
    ("Select(7, Lit sparse(base=0), Lit raw)", 8, [7, 7, 7], "", "01 00"),
    ("Scan(add, Lit raw)", 8, [250, 255, 4, 3], "", "fa 05 05 ff"),
    ("Scan(xor, Lit raw)", 12, [0xABC, 0xDEF], "", "bc0a 75 03"),
    ("Merge(4: Lit raw, 12: Lit raw)", 16, [0x1234, 0xABCD], "", "a1 23bc d4"),
    ("Merge(8: Scan(add, Const 1), 8: Lit raw)", 16, [0x0105, 0x0206], "", "01 05 06"),
]


@pytest.mark.parametrize(("text", "bits", "words", "shared", "payload"), BLOCKS)
def test_block(text: str, bits: int, words: list[int], shared: str, payload: str) -> None:
    node, count = parse_text(text), len(words)
    given, stored = bytes.fromhex(shared), bytes.fromhex(payload)
    assert decode_block(node, bits, count, 64, 0, given, stored) == words
    assert encode_block(node, bits, count, 64, 0, given, words) == stored


@pytest.mark.parametrize(("text", "bits", "words", "shared", "payload"), BLOCKS)
def test_block_of_another_length_is_malformed(
    text: str, bits: int, words: list[int], shared: str, payload: str
) -> None:
    node, count = parse_text(text), len(words)
    given, stored = bytes.fromhex(shared), bytes.fromhex(payload)
    with pytest.raises(Malformed):
        decode_block(node, bits, count, 64, 0, given, stored + b"\1")
    with pytest.raises(Malformed):
        decode_block(node, bits, count, 64, 0, given + b"\1", stored)
    for length in range(len(stored)):
        with pytest.raises(Malformed):
            decode_block(node, bits, count, 64, 0, given, stored[:length])
    for length in range(len(given)):
        with pytest.raises(Malformed):
            decode_block(node, bits, count, 64, 0, given[:length], stored)


def test_a_block_evaluates_only_what_it_holds() -> None:
    node = parse_text("Concat(64: Lit raw, 64: Scan(add, Const 1))")
    words = [7] * 64 + list(range(100, 164))
    assert encode_block(node, 8, 128, 64, 0, b"", words[:64]) == bytes([7] * 64)
    assert encode_block(node, 8, 128, 64, 1, b"", words[64:]) == bytes([100])


def test_a_scan_of_one_word_is_its_anchor() -> None:
    node = parse_text("Scan(add, Lit sparse(base=0))")
    assert encode_block(node, 8, 65, 64, 1, b"", [9]) == b"\x09"
    assert decode_block(node, 8, 65, 64, 1, b"", b"\x09") == [9]


def test_segments_are_counted_from_the_start_of_the_stream() -> None:
    node = parse_text("Lit huffman(max=1, streams=1, tables=2, segment=96)")
    words = [0] * 96 + [1] * 32
    shared = build_shared(node, 1, 128, 64, words)
    assert shared == bytes.fromhex("03 010010")
    assert encode_block(node, 1, 128, 64, 1, shared, words[64:]).startswith(bytes([10, 0b10]))


def test_the_words_of_a_segment_are_taken_by_the_classes_of_their_places() -> None:
    node = parse_text("Lit huffman(max=1, streams=1, tables=2, segment=16, rows=1, columns=2)")
    words = [0, 1, 0, 0, 1, 1] * 6
    shared = build_shared(node, 1, 36, 64, words)
    assert shared == bytes.fromhex("05 00ff 02 1111")
    payload = encode_block(node, 1, 36, 64, 0, shared, words)
    order = [at + place for at in (0, 16, 32) for place in range(16) if at + place < 36]
    even, odd = ([words[i] for i in order if i % 2 == column] for column in (0, 1))
    bits = "1" + "".join(map(str, even + odd))
    assert payload == bytes([5]) + int(bits, 2).to_bytes(5, "little")
    assert decode_block(node, 1, 36, 64, 0, shared, payload) == words


def test_zstd() -> None:
    node, words = Lit(Zstd()), [1, 2, 3] * 500
    payload = encode_block(node, 16, 1500, 2048, 0, b"", words)
    assert len(payload) < 60
    assert decode_block(node, 16, 1500, 2048, 0, b"", payload) == words
    frame = payload[1:]
    for bad in (frame + frame, frame[:-1], b"\0" * len(frame), b""):
        with pytest.raises(Malformed):
            decode_block(node, 16, 1500, 2048, 0, b"", bytes([len(bad)]) + bad)
    with pytest.raises(Malformed):
        decode_block(node, 16, 1499, 2048, 0, b"", payload)


@pytest.mark.parametrize(
    ("text", "words", "shared"),
    [
        ("Const 7", [7, 8], ""),
        ("Repeat(2, Lit raw)", [1, 2, 1, 3], "02 0102"),
        ("Lit pack(4, base=10)", [9], ""),
        ("Lit pack(4, base=10)", [26], ""),
        ("Lit pack(0, base=0)", [1], ""),
        ("Lit huffman(max=9, streams=3)", [1], "03 01fe03"),
        ("Lit rans(lanes=1, prob=8)", [1], "05 8002 00fe01"),
        ("Scan(add, Const 1)", [1, 2, 4], ""),
        ("Map(xor 1, Const 1)", [0, 1], ""),
        ("Merge(4: Const 1, 4: Lit raw)", [0x10, 0x2F], ""),
        ("Concat(1: Lit raw, 1: Const 1)", [1, 2], ""),
    ],
)
def test_does_not_apply(text: str, words: list[int], shared: str) -> None:
    with pytest.raises(NotApplicable):
        encode_block(parse_text(text), 8, len(words), 64, 0, bytes.fromhex(shared), words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Repeat(2, Lit raw)", [1, 2, 1, 3]),
        ("Repeat(2, Const 1)", [2, 2]),
        ("Lit huffman(max=1, streams=1)", [1, 2, 3]),
        ("Lit rans(lanes=1, prob=8)", list(range(257))),
    ],
)
def test_no_shared_parts(text: str, words: list[int]) -> None:
    with pytest.raises(NotApplicable):
        build_shared(parse_text(text), 16, len(words), 512, words)


def test_wrong_number_of_words() -> None:
    node = parse_text("Lit raw")
    for words in ([1, 2, 3], [1, 2, 3, 4, 5]):
        with pytest.raises(NotApplicable):
            encode_block(node, 8, 4, 64, 0, b"", words)
        with pytest.raises(NotApplicable):
            build_shared(node, 8, 4, 64, words)


PAIRED = "Lit huffman(max=1, streams=1, tables=3, segment=16, rows=3, columns=3)"


@pytest.mark.parametrize(
    ("text", "bits", "shared", "payload", "reason"),
    [
        ("Scan(add, Lit raw)", 7, "", "80 00", "anchor 0x80 is not a word of 7 bits"),
        ("Lit sparse(base=0)", 8, "", "01 03", "3 exceptions in 2 words"),
        ("Lit sparse(base=0)", 8, "", "03 01 02 05", "an exception at 2 of 2 words"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210200", "01 00", "without an end mark"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210200", "01 03", "ends early"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210200", "01 08", "1 bits too many"),
        ("Lit huffman(max=2, streams=3)", 2, "03 210200", "05 01 01 02 02 01", "a stream without words"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210300", "01 04", "a code of 3 bits, more than 2"),
        ("Lit huffman(max=2, streams=1)", 2, "03 211200", "01 04", "not complete"),
        ("Lit huffman(max=2, streams=1)", 2, "03 220200", "01 04", "not complete"),
        ("Lit huffman(max=2, streams=1)", 2, "02 2002", "01 04", "not complete"),
        ("Lit huffman(max=2, streams=1)", 2, "01 30", "01 04", "not complete"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210201", "01 04", "passes the end"),
        ("Lit huffman(max=2, streams=1)", 2, "04 01ffffff", "01 04", "passes the end"),
        ("Lit huffman(max=2, streams=1)", 2, "03 210208", "01 04", "more groups than it needs"),
        ("Lit huffman(max=2, streams=1)", 2, "04 21020000", "01 04", "nibbles after the last table"),
        ("Lit huffman(max=1, streams=1, tables=3, segment=16)", 1, "03 111111", "02 03 04", "class 3 of 3"),
        (PAIRED, 1, "0a 00000000 000000 111111", "02 03 04", "class 3 of 3 classes of segments"),
        (PAIRED, 1, "0a 000000ff 000000 111111", "02 00 04", "class 3 of 3 classes of columns"),
        (PAIRED, 1, "0a 00000000 ff0000 111111", "02 00 04", "table 3 of 3"),
        ("Lit rans(lanes=1, prob=8)", 1, "03 8001 7f", "04 00000100", "do not sum"),
        ("Lit rans(lanes=1, prob=8)", 1, "04 8002 0001", "04 00000100", "passes the end"),
        ("Lit rans(lanes=1, prob=8)", 1, "05 8002 0000 00", "04 00000100", "1 bytes too many"),
        ("Lit rans(lanes=1, prob=8)", 1, "04 8001 8001", "04 00000800", "does not end where it began"),
        ("Lit rans(lanes=1, prob=8)", 1, "04 8001 8001", "04 ff000000", "out of range"),
        ("Lit rans(lanes=1, prob=8)", 1, "04 8001 8001", "04 00000001", "out of range"),
    ],
)
def test_malformed(text: str, bits: int, shared: str, payload: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        decode_block(parse_text(text), bits, 2, 64, 0, bytes.fromhex(shared), bytes.fromhex(payload))


def test_either_bit_decodes_to_the_only_symbol() -> None:
    node, shared = parse_text("Lit huffman(max=9, streams=1)"), bytes.fromhex("03 01fe03")
    for stream in (4, 5, 6, 7):
        assert decode_block(node, 8, 2, 64, 0, shared, bytes([1, stream])) == [0, 0]


def test_code_lengths() -> None:
    histogram = Counter({0: 1, 1: 1, 2: 2, 3: 4})
    assert code_lengths(histogram, 15) == {0: 3, 1: 3, 2: 2, 3: 1}
    assert code_lengths(histogram, 2) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert code_lengths(Counter([7]), 15) == {7: 1}
    assert code_lengths(Counter(), 15) == {0: 1}
    with pytest.raises(NotApplicable):
        code_lengths(histogram, 1)


def test_frequencies() -> None:
    assert frequencies(Counter({3: 1, 9: 1}), 8) == {3: 128, 9: 128}
    assert frequencies(Counter({3: 1, 9: 100_000}), 8) == {3: 1, 9: 255}
    assert frequencies(Counter(dict.fromkeys(range(256), 1)), 8) == dict.fromkeys(range(256), 1)
    assert frequencies(Counter(), 8) == {0: 256}


def test_items_of_tables() -> None:
    assert huffman_item([{0: 1, 1: 2, 2: 2}], 2).hex() == "210200"
    assert huffman_item([dict.fromkeys(range(256), 8)], 8) == b"\x88" * 128
    assert rans_item([{2: 256}], 2).hex() == "000180020000"
