"""The native executor and encoder against the plain-Python reference, on random programs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

from brevisfs import _native as native
from brevisfs.dsl import (
    Encoding,
    Huffman,
    Lit,
    Node,
    Palette,
    Rans,
    Raw,
    Select,
    Tunstall,
    parse_text,
    to_wire,
    walk,
)
from brevisfs.dsl.reference import decode_block, flatten, pairs_item
from tests import programs
from tests.programs import Case, random_case

CASES = int(os.environ.get("BREVISFS_RANDOM_CASES", "2500"))
RANGES = 4
THREADS = 4


@pytest.fixture(params=["best", "avx2", "scalar"])
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    best = native.cpu()
    if request.param == "avx2" and best in ("avx2", "scalar"):
        pytest.skip("the best of this machine is no more than that")
    if request.param != "best":
        monkeypatch.setenv("BREVISFS_CPU", request.param)
        assert native.cpu() == request.param
    return str(request.param)


@cache
def case_of(seed: int) -> Case:
    """The same for each instruction set: making a case takes longer than all that is done with it."""
    return random_case(random.Random(seed))


@cache
def reference_words(seed: int, index: int, payload: bytes) -> bytes:
    case = case_of(seed)
    words = decode_block(case.node, case.bits, case.count, case.block, index, case.shared, payload)
    return flatten(words, case.bits)


def program(case: Case) -> native.Program:
    return native.Program(case.wire, case.shared, case.bits, case.count, case.block)


def spans(payloads: list[bytes]) -> np.ndarray:
    lengths = np.array([len(p) for p in payloads], np.uint64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uint64)
    return np.stack([starts, lengths], axis=1)


def block_bytes(case: Case) -> int:
    return case.block * case.bits // 8


def blocks(case: Case) -> Iterator[tuple[int, bytes]]:
    step = block_bytes(case)
    for index in range(len(case.payloads)):
        yield index, case.flat[index * step : (index + 1) * step]


def decode(case: Case, prog: native.Program, lo: int, hi: int) -> bytes:
    first, last = lo // block_bytes(case), (hi - 1) // block_bytes(case)
    chosen = case.payloads[first : last + 1]
    checks = np.array([native.checksum(flat) for i, flat in blocks(case) if first <= i <= last], np.uint64)
    out = bytearray(b"\xa5" * (hi - lo + 64))
    prog.decode(b"".join(chosen), first, spans(chosen), checks, out, lo, hi)
    assert out[hi - lo :] == b"\xa5" * 64, "wrote past the range"
    return bytes(out[: hi - lo])


def check_ranges(seed: int) -> int:
    rng = random.Random(seed)
    case = case_of(seed)
    prog = program(case)
    size = len(case.flat)
    ranges = [(0, size)]
    for _ in range(RANGES - 1):
        lo = rng.randrange(size)
        ranges.append((lo, rng.randint(lo + 1, min(size, lo + 1 + rng.choice((1, 100, size))))))
    for lo, hi in ranges:
        assert decode(case, prog, lo, hi) == case.flat[lo:hi], f"seed {seed}, bytes {lo}..{hi}"
    return len(ranges)


def test_random_ranges_decode_like_the_reference(cpu: str) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(check_ranges, range(CASES // 2)))
    assert done == CASES // 2 * RANGES


@pytest.mark.parametrize(
    "text", ["Const 7", "Repeat(4, Lit raw)", "Palette(1, 5: Lit raw)", "Lit pack(3, base=0)"]
)
def test_words_that_a_program_does_not_describe_are_refused(text: str, cpu: str) -> None:
    case = programs.case_of(random.Random(0), parse_text(text), 8, 400, 64)
    prog = program(case)
    payload = bytearray(prog.encode_bound())
    for at in (0, 63, 100, 399):
        index, words = at // 64, bytearray(case.flat)
        words[at] ^= 0x80
        block = slice(64 * index, min(400, 64 * index + 64))
        prog.encode_block(index, case.flat[block], payload)
        with pytest.raises(native.NotApplicable):
            prog.encode_block(index, bytes(words[block]), payload)


@pytest.mark.parametrize("seed", range(20))
def test_one_program_is_decoded_by_many_threads(seed: int) -> None:
    case = random_case(random.Random(10_000 + seed))
    prog = program(case)
    size = len(case.flat)

    def one(i: int) -> bool:
        rng = random.Random(i)
        lo = rng.randrange(size)
        hi = rng.randint(lo + 1, size)
        return decode(case, prog, lo, hi) == case.flat[lo:hi]

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(one, range(200)))


def has_several_tables(case: Case) -> bool:
    return any(
        isinstance(node, Lit)
        and isinstance(node.encoding, Huffman | Rans | Tunstall)
        and node.encoding.tables > 1
        for _, _, node, _, _ in walk(case.node, case.bits, case.count)
    )


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_what_the_native_encoder_writes_the_reference_reads(first: int, cpu: str) -> None:
    seen = 0
    for seed in range(20_000 + first, 20_000 + first + 100):
        case = case_of(seed)
        if has_several_tables(case):
            continue  # classes are the encoder's choice: see the next test
        prog = program(case)
        out = bytearray(prog.encode_bound())
        for index, flat in blocks(case):
            n = prog.encode_block(index, flat, out)
            assert reference_words(seed, index, bytes(out[:n])) == flat, f"seed {seed}"
            seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    "encoding", [Huffman(5, 11, 3, 48), Huffman(1, 12, 3, 48), Rans(8, 12, 3, 48), Tunstall(10, 12, 3, 48)]
)
def test_classes_choose_the_table_of_a_segment(encoding: Encoding, cpu: str) -> None:
    assert isinstance(encoding, Huffman | Rans | Tunstall)
    rng = np.random.default_rng(3)
    count, segment, block, tables = 5000, encoding.segment, 1024, encoding.tables
    classes = rng.integers(0, tables, -(-count // segment)).astype(np.uint8)
    of_word = np.repeat(classes, segment)[:count]
    words = (rng.integers(0, 40, count) + 60 * of_word).astype(np.uint8)
    hist = np.zeros((tables, 256), np.uint64)
    np.add.at(hist, (of_word, words), 1)
    wire = to_wire(Lit(encoding))
    if isinstance(encoding, Huffman):
        item = native.huffman_tables(hist, encoding.max_length)
    else:
        item = native.rans_tables(hist, encoding.prob_bits)
    shared = native.join_shared([item])
    prog = native.Program(wire, shared, 8, count, block, {0: classes})
    counted = np.zeros_like(hist)
    analysis = native.Analysis(wire, 8, count, block)
    data, payloads = words.tobytes(), []
    out = bytearray(prog.encode_bound())
    for index in range(-(-count // block)):
        part = data[index * block : (index + 1) * block]
        payloads.append(bytes(out[: prog.encode_block(index, part, out)]))
        analysis.histogram(index, part, 0, counted, classes)
    assert (counted == hist).all()
    words_back: list[int] = []
    for index, payload in enumerate(payloads):
        words_back += decode_block(Lit(encoding), 8, count, block, index, shared, payload)
    assert bytes(words_back) == data
    got = bytearray(count)
    prog.decode(b"".join(payloads), 0, spans(payloads), None, got, 0, count)
    assert got == data
    reader = native.Program(wire, shared, 8, count, block)
    with pytest.raises(native.NativeError, match="classes"):
        reader.encode_block(0, data[:block], out)


@pytest.mark.parametrize("segment", [16, 64, 100, 384, 1000])
@pytest.mark.parametrize("bits", [3, 8, 10])
@pytest.mark.parametrize("columns", [2, 5, 8, 16])
def test_pairs_of_classes_choose_the_table_of_a_word(segment: int, bits: int, columns: int, cpu: str) -> None:
    rng = np.random.default_rng(segment)
    places = rng.integers(0, columns, segment)
    if segment == 384:
        places[rng.random(segment) < 0.6] = 0  # a class that most of the places have
    check_pairs(places, columns, bits)


@pytest.mark.parametrize("most", [31, 32, 33, 34, 63, 64])
def test_half_of_the_places_of_a_class_are_looked_up_at_once(most: int, cpu: str) -> None:
    # What vectors look up at once are 32 words of a class for 64 places.
    rng = np.random.default_rng(most)
    places = np.concatenate([rng.permutation(np.arange(64) >= most) for _ in range(3)]).astype(np.int64)
    check_pairs(places, 2, 8)


def check_pairs(places: np.ndarray, columns: int, bits: int) -> None:
    """Words under a literal with three classes of rows and places of these classes come back as they were."""
    segment = len(places)
    rng = np.random.default_rng(segment)
    count, block, tables, rows = 5000, 1024, 4, 3
    classes = rng.integers(0, rows, -(-count // segment)).astype(np.uint8)
    pairs = rng.integers(0, tables, rows * columns)
    at = np.arange(count)
    table = pairs[classes[at // segment] * columns + places[at % segment]]
    words = ((rng.integers(0, 1 << bits, count) >> table) + table) % (1 << bits)
    encoding = Rans(8, 12, tables, segment, rows, columns)
    hist = np.zeros((tables, 1 << bits), np.uint64)
    np.add.at(hist, (table, words), 1)
    head = pairs_item(encoding, places.tolist(), pairs.tolist())
    shared = native.join_shared([head + native.rans_tables(hist, 12)])
    wire, data = to_wire(Lit(encoding)), flatten(words.tolist(), bits)
    prog = native.Program(wire, shared, bits, count, block, {0: classes})
    payloads, out, step = [], bytearray(prog.encode_bound()), block * bits // 8
    for index in range(-(-count // block)):
        part = data[index * step : (index + 1) * step]
        payloads.append(bytes(out[: prog.encode_block(index, part, out)]))
    words_back: list[int] = []
    for index, payload in enumerate(payloads):
        words_back += decode_block(Lit(encoding), bits, count, block, index, shared, payload)
    assert words_back == words.tolist()
    got = bytearray(len(data))
    prog.decode(b"".join(payloads), 0, spans(payloads), None, got, 0, len(data))
    assert got == data


BLOCK = 4096


def there_and_back(node: Node, bits: int, words: np.ndarray) -> np.ndarray:
    """Words in containers of `bits` bits, encoded and decoded in blocks."""
    program = native.Program(to_wire(node), b"", bits, len(words), BLOCK)
    step = BLOCK * bits // 8
    data, payloads = words.tobytes(), []
    for index, at in enumerate(range(0, len(data), step)):
        out = bytearray(program.encode_bound())
        payloads.append(bytes(out[: program.encode_block(index, data[at : at + step], out)]))
    back = np.empty_like(words)
    program.decode(b"".join(payloads), 0, spans(payloads), None, back.view(np.uint8), 0, len(data))
    return back


def random_palette(rng: np.random.Generator, bits: int, size: int) -> np.ndarray:
    kind = np.dtype(f"<u{bits // 8}")
    return np.unique(np.frombuffer(rng.bytes(3 * size * kind.itemsize), kind))[:size]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("size", [2, 15, 16, 17, 100, 3000])
def test_palettes_of_every_size(bits: int, size: int, cpu: str) -> None:
    rng = np.random.default_rng(size)
    table = random_palette(rng, bits, size)
    node = Palette(tuple(table.tolist()), Lit(Raw()))
    words = rng.choice(table, 3 * BLOCK + 1237)
    assert (there_and_back(node, bits, words) == words).all()
    for at in (0, 100, len(words) - 1):
        for other in {int(table[0]) - 1, int(table[-1]) + 1, int(table[0]) + 1, (1 << bits) - 1}:
            if other not in node.words and 0 <= other < 1 << bits:
                strange = words.copy()
                strange[at] = other
                with pytest.raises(native.NotApplicable, match="palette"):
                    there_and_back(node, bits, strange)


@pytest.mark.parametrize("size", [15, 100])
def test_a_place_beyond_the_palette_is_damage(size: int, cpu: str) -> None:
    width = (size - 1).bit_length()
    places = np.zeros(BLOCK, np.uint8)
    places[BLOCK // 2] = size
    payload = bytearray(BLOCK)
    raw = native.Program(to_wire(Lit(Raw())), b"", width, BLOCK, BLOCK)
    flat = np.packbits((places[:, None] >> np.arange(width)) & 1, bitorder="little")
    length = raw.encode_block(0, flat, payload)
    for table in (range(size), range(0, 256 * size, 256)):
        bits = 8 if table[-1] < 256 else 16
        program = native.Program(to_wire(Palette(tuple(table), Lit(Raw()))), b"", bits, BLOCK, BLOCK)
        out = np.empty(BLOCK * bits // 8, np.uint8)
        with pytest.raises(native.BlockDamaged, match="palette"):
            program.decode(payload[:length], 0, spans([bytes(payload[:length])]), None, out, 0, len(out))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_selects_of_every_density(bits: int, share: float, cpu: str) -> None:
    rng = np.random.default_rng(int(share * 100))
    words = np.frombuffer(rng.bytes(bits // 8 * (3 * BLOCK + 1237)), f"<u{bits // 8}").copy()
    words[rng.random(len(words)) >= share] = 7
    assert (there_and_back(Select(7, Lit(Raw()), Lit(Raw())), bits, words) == words).all()
