"""What is written into an archive is read back, in any range, from any thread."""

import hashlib
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from brevisfs import _native
from brevisfs.archive import Kind, Reader, Ref, Writer, _reader, decoded, is_archive, original_length, verify
from tests.archives import (
    Part,
    assemble,
    encoded,
    opened,
    original,
    random_parts,
    read,
    referring,
)


def sample() -> list[Part]:
    """Three small sections, of several blocks, of words that are not whole bytes, of one block."""
    flat = random.Random(5).randbytes(300)
    return [
        encoded("Lit zstd", 8, b'\x40\0\0\0\0\0\0\0{"a": 1}' + b" " * 56, 64, Kind.HEADER),
        encoded("Merge(4: Lit huffman(max=9, streams=2), 8: Lit raw)", 12, flat, 64, dtype="BF16"),
        encoded("Const 7", 8, b"\7" * 9, 128, Kind.BYTES),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_random_archives_read_back_in_any_range(seed: int) -> None:
    parts = random_parts(seed, 12)
    whole = original(parts)
    rng = random.Random(seed)
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        assert reader.size == len(whole)
        assert read(reader, 0, len(whole)) == whole
        cuts = [sorted(rng.choices(range(len(whole) + 1), k=2)) for _ in range(60)]
        with ThreadPoolExecutor(4) as pool:
            for (begin, end), got in zip(cuts, pool.map(lambda cut: read(reader, *cut), cuts), strict=True):
                assert got == whole[begin:end]
        assert verify(fd).ok


def blocks_of(reader: Reader) -> list[tuple[int, int]]:
    """Where each block of an archive begins and ends."""
    return [
        (begin, min(begin + section.block_size, section.end))
        for section in reader.sections
        for begin in range(section.offset, section.end, section.block_size)
    ]


def test_ranges_that_take_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reader, "_PARTS", 1)
    parts = random_parts(99, 6)
    whole = original(parts)
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        assert read(reader, 0, len(whole)) == whole
        assert read(reader, 3, len(whole) - 3) == whole[3:-3]


@pytest.mark.parametrize("most", [0, 200_000])
def test_programs_kept_are_bounded(most: int) -> None:
    parts = random_parts(99, 40)
    forms = [(part.wire, part.shared, part.bits, part.count, part.block) for part in parts]
    sizes = [_native.Program(*form).memory for form in forms]
    assert sum(sizes) > most + 2 * max(sizes)
    with opened(assemble(parts)) as fd:
        reader = Reader(fd, programs=most)
        index = reader.memory
        assert read(reader, 0, reader.size) == original(parts)
        assert index < reader.memory <= index + most + max(sizes)


@pytest.mark.parametrize("block", [64, 1 << 12, 1 << 18])
def test_ranges_of_many_blocks(block: int) -> None:
    rng = random.Random(block)
    flat = rng.randbytes(min(40 * block, 2 << 20) + 77)
    parts = [encoded("Lit raw", 8, flat, block)]
    parts.append(referring("Const 0", flat, Ref.XOR, 0, parts))
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        for _ in range(30):
            begin, end = sorted(rng.choices(range(2 * len(flat) + 1), k=2))
            assert read(reader, begin, end) == (2 * flat)[begin:end]


def test_blocks_above_a_piece() -> None:
    flat = random.Random(1).randbytes(9 << 20)
    part = Part(Kind.TENSOR, "U64", 64, len(flat) // 8, 2**20, b"\x00", b"", [], flat)
    raw = encoded("Lit raw", 64, flat[:8], 64)
    blocks = [flat[at : at + (8 << 20)] for at in range(0, len(flat), 8 << 20)]
    part = Part(part.kind, part.dtype, 64, part.count, 2**20, raw.wire, b"", blocks, flat)
    with opened(assemble([part])) as fd:
        assert read(Reader(fd), 12345, len(flat) - 99) == flat[12345:-99]
        assert verify(fd).ok


def test_the_bytes_are_those_of_the_format_page() -> None:
    """A second reader, written from docs/format.md alone, sees what was put in."""
    parts = sample()
    data, whole = assemble(parts), original(parts)
    checksum = _native.checksum

    magic, version, zero, incompatible, compatible, length, head_check = struct.unpack("<8sIIQQQQ", data[:48])
    assert magic == bytes.fromhex("89425256 0d0a1a0a")
    assert int.from_bytes(magic, "little") > 100_000_000
    assert (version, zero, incompatible, compatible, length) == (1, 0, 0, 0, len(whole))
    assert head_check == checksum(data[:40])

    tail = data[-104:]
    index, sections, blocks, length, index_check, archive_check = struct.unpack("<6Q", tail[:48])
    assert (sections, blocks, length) == (len(parts), sum(len(part.payloads) for part in parts), len(whole))
    assert tail[48:80] == hashlib.sha256(whole).digest()
    assert struct.unpack("<QQ8s", tail[80:]) == (head_check, checksum(tail[:88]), magic[::-1])
    assert archive_check == checksum(data[:-104])
    assert index_check == checksum(data[index:-104])
    entries, table = data[index : index + 16 * blocks], data[index + 16 * blocks : -104]
    assert len(table) == 21 * sections

    at, number = 48, 0
    for part, entry in zip(parts, (table[i : i + 21] for i in range(0, len(table), 21)), strict=True):
        code = {None: 0, "BF16": 15}[part.dtype]
        head = b"BS" + bytes([part.kind, code, part.bits])
        for value in (part.count, part.block // 64, len(part.wire), len(part.shared)):
            assert value < 1 << 14
            head += bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])
        prologue = len(head) + 8 + len(part.wire) + len(part.shared)
        shape = (part.count, prologue, 0, part.block // 64)
        assert struct.unpack("<QIIHBBB", entry) == (*shape, part.bits, part.kind, code)
        body = part.wire + part.shared
        assert data[at : at + prologue] == head + struct.pack("<Q", checksum(head + body)) + body
        at += prologue
        size = part.block * part.bits // 8
        for block, payload in enumerate(part.payloads):
            assert data[at : at + 4 + len(payload)] == struct.pack("<I", len(payload)) + payload
            at += 4 + len(payload)
            flat = part.flat[block * size : (block + 1) * size]
            assert entries[16 * number : 16 * number + 16] == struct.pack("<QQ", at, checksum(flat))
            number += 1
    assert at == index


DTYPE_CODES = (
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ "
    "I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
)


def test_dtype_codes() -> None:
    dtypes: list[str | None] = [*DTYPE_CODES.split(), None, "F5_NEW"]
    data = assemble([encoded("Lit raw", 8, b"x", 64, dtype=dtype) for dtype in dtypes])
    with opened(data) as fd:
        sections = Reader(fd).sections
        assert [section.code for section in sections] == [*range(1, 23), 0, 0]
        assert [section.dtype for section in sections] == [*dtypes[:-1], None]


def test_an_empty_original() -> None:
    with opened(assemble([])) as fd:
        reader = Reader(fd)
        assert (reader.size, reader.stored, len(reader.sections)) == (0, 48 + 104, 0)
        reader.read_into(0, bytearray())
        assert verify(fd).ok
        assert original_length(fd) == 0
        with pytest.raises(ValueError, match="byte 0"):
            reader.section_at(0)


def test_sections() -> None:
    parts = sample()
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        sections = reader.sections
        assert [section.kind for section in sections] == [Kind.HEADER, Kind.TENSOR, Kind.BYTES]
        assert [(s.offset, s.size, s.end) for s in sections] == [(0, 72, 72), (72, 300, 372), (372, 9, 381)]
        assert sections[-1] == sections[2] == reader.section_at(372) == reader.section_at(380)
        assert sections[:2] == [reader.section_at(0), reader.section_at(72)]
        with pytest.raises(IndexError):
            sections[3]
        for offset in (-1, 381):
            with pytest.raises(ValueError, match="381"):
                reader.section_at(offset)
        assert reader.blocks == sum(section.blocks for section in sections) == 2 + 4 + 1
        for section, part in zip(sections, parts, strict=True):
            wire, shared, lengths = reader.describe(section)
            assert reader.program(section) == (wire, shared) == (part.wire, part.shared)
            assert lengths.tolist() == [len(payload) for payload in part.payloads]
        assert reader.stored == os.fstat(fd).st_size
        assert reader.sha256 == hashlib.sha256(original(parts)).digest()


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 382), (381, 1), (2**64, 0)])
def test_ranges_outside_the_original(offset: int, length: int) -> None:
    with opened(assemble(sample())) as fd, pytest.raises(ValueError, match="not all of the original's 381"):
        Reader(fd).read_into(offset, bytearray(length))


@pytest.mark.parametrize("offset", [0, 100, 381])
def test_an_empty_range(offset: int) -> None:
    with opened(assemble(sample())) as fd:
        Reader(fd).read_into(offset, bytearray())


def test_any_writable_buffer_is_filled() -> None:
    parts = sample()
    with opened(assemble(parts)) as fd:
        out = np.zeros(19, np.uint32)
        Reader(fd).read_into(2, out)
        assert out.tobytes() == original(parts)[2:78]
        with pytest.raises((TypeError, ValueError, BufferError)):
            Reader(fd).read_into(0, bytes(4))


def test_programs_are_prepared_once_and_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(_native.Program):
        def __init__(self, wire: Any, shared: Any, bits: int, count: int, block: int) -> None:
            made.append(bits)
            super().__init__(wire, shared, bits, count, block)

    monkeypatch.setattr(_native, "Program", Counted)
    parts = sample()
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        index = reader.memory
        assert index >= 3 * 56 + 7 * 16
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: read(reader, 100, 300), range(20)))
        assert made == [12]
        assert reader.memory > index
        reader.drop_programs()
        assert reader.memory == index
        assert read(reader, 100, 300) == original(parts)[100:300]
        assert made == [12, 12]


def test_opening_reads_head_tail_and_index_and_a_range_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched: list[tuple[int, int]] = []
    pread, preadv = os.pread, os.preadv

    def watch_pread(fd: int, length: int, offset: int) -> bytes:
        touched.append((offset, offset + length))
        return pread(fd, length, offset)

    def watch_preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        touched.append((offset, offset + sum(map(len, buffers))))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "pread", watch_pread)
    monkeypatch.setattr(os, "preadv", watch_preadv)
    data = assemble(sample())
    with opened(data) as fd:
        reader = Reader(fd)
        index = len(data) - 104 - 3 * 21 - 7 * 16
        assert sorted(touched) == [(0, 48), (index, len(data) - 104), (len(data) - 104, len(data))]
        section = reader.sections[1]
        touched.clear()
        read(reader, section.offset + 100, section.offset + 200)
        assert touched == [(section.record, section.record + section.prologue)]
        touched.clear()
        original_length(fd)
        assert touched == [(0, 48)]


def test_the_same_input_gives_the_same_bytes() -> None:
    assert assemble(random_parts(3, 5)) == assemble(random_parts(3, 5))


def test_progress_is_told_to_the_end() -> None:
    calls: list[tuple[int, int]] = []
    with opened(assemble(sample())) as fd:
        report = verify(fd, lambda done, total: calls.append((done, total)))
        assert calls == [(381, 381)]
        assert report.ok
        assert (report.original, report.stored) == (381, os.fstat(fd).st_size)
        assert (report.sections, report.blocks) == (3, 7)
        assert is_archive(fd)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_of_an_archive_in_order(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brevisfs.archive._pieces.PIECE", 1000)
    parts = random_parts(4, 40)
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        whole, at = bytearray(), 0
        for offset, data in decoded(reader, threads):
            assert offset == at
            at += len(data)
            whole += data.tobytes()
        assert at == reader.size > 5000
        assert bytes(whole) == read(reader, 0, reader.size)
        assert verify(fd, threads=threads).ok


def begun(**changes: Any) -> Writer:
    writer = Writer(BytesIO().write, 100)
    fields = {"kind": Kind.TENSOR, "dtype": "U8", "offset": 0, "bits": 8, "count": 100, "block": 64}
    writer.begin_section(**{**fields, "wire": b"w", "shared": b"", **changes})
    return writer


@pytest.mark.parametrize(
    "changes",
    [
        {"bits": 0},
        {"bits": 65},
        {"count": 0},
        {"count": 101},
        {"bits": 7, "count": 9},
        {"block": 0},
        {"block": 96},
        {"block": 2**20 + 64},
        {"offset": 1, "count": 1},
        {"wire": bytes(2**16 + 1)},
        {"shared": bytes(2**26 + 1)},
    ],
)
def test_the_writer_refuses_a_section_that_breaks_a_rule(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fit|too long"):
        begun(**changes)


def test_the_writer_refuses_calls_out_of_order() -> None:
    with pytest.raises(ValueError, match="no section has room"):
        Writer(BytesIO().write, 100).add_block(b"", 0)
    with pytest.raises(ValueError, match="0 of the original's 100"):
        Writer(BytesIO().write, 100).finish(bytes(32))
    with pytest.raises(ValueError, match="-1 bytes"):
        Writer(BytesIO().write, -1)
    writer = begun()
    writer.add_block(b"x", 0)
    with pytest.raises(ValueError, match="1 of 2 blocks"):
        writer.finish(bytes(32))
    with pytest.raises(ValueError, match="too long for"):
        writer.add_block(bytes(16 * 64 + 2**16 + 1), 0)
    writer.add_block(bytes(16 * 64 + 2**16), 0)
    with pytest.raises(ValueError, match="no section has room"):
        writer.add_block(b"", 0)
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        writer.finish(bytes(31))
    writer.finish(bytes(32))
