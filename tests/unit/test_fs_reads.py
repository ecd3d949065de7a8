"""Reads that Python answers, through the cache that it shares with the front: right bytes, bounded memory."""

import errno
import gc
import mmap
import os
import random
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from pyfuse3 import FUSEError

from brevisfs.archive import Kind as SectionKind
from brevisfs.archive import Reader
from brevisfs.dsl import Lit, Raw, Repeat, to_wire
from brevisfs.fs._backing import Backing
from brevisfs.fs._reads import SMALLEST_BUDGET, Reads
from brevisfs.fs._tuning import REQUEST
from tests.archives import Part, assemble, encoded, original
from tests.reads import BLOCK, Setting, archive_of, run
from tests.stores import noise

RUN = 2 * BLOCK
MEGABYTE = 1 << 20

DATA = noise(5 * BLOCK + 12_345)
ARCHIVE = archive_of(DATA[:100], DATA[100:])


def test_any_range() -> None:
    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)
        ends = [0, 1, 99, 100, 511, BLOCK, BLOCK + 100, 3 * BLOCK, len(DATA) - 1, len(DATA), len(DATA) + 9]
        for begin in ends:
            for size in (0, 1, 4096, BLOCK, BLOCK + 1, REQUEST, len(DATA) + 1):
                assert await s.read(backing, begin, size) == DATA[begin : begin + size]
        assert s.count("failed") == 0

    run(test)


def test_what_is_decoded_outlives_the_handles() -> None:
    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)
        file = os.dup(backing.file)
        await s.read(backing, 200, 10)
        s.reads.backings.release(backing)
        await s.closed()
        backing = await s.adopt(file)
        assert await s.read(backing, 300, 10) == DATA[300:310]
        assert (s.count("decoded"), s.count("found"), s.count("requests")) == (1, 1, 2)

    run(test)


def test_what_is_prepared_does_too() -> None:
    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)
        reader = backing.reader
        await s.read(backing, 0, len(DATA))
        for _ in range(3):
            file = os.dup(backing.file)
            s.reads.backings.release(backing)
            await s.closed()
            assert s.reads.backings.memory > 0
            backing = await s.adopt(file)
            assert backing.reader is reader
            assert s.count("program_bytes") > 0
        damage_records(backing)
        assert await s.read(backing, 0, len(DATA)) == DATA
        s.reads.front.limit(0)
        assert s.count("program_bytes") == 0
        with pytest.raises(FUSEError):
            await s.read(backing, 0, len(DATA))

    run(test)


def damage_records(backing: Backing) -> None:
    """Only what is prepared of an archive can be read from now on."""
    assert isinstance(backing.reader, Reader)
    for section in backing.reader.sections:
        os.pwrite(backing.file, bytes(section.prologue), section.record)


def test_of_indexes_that_take_too_much_the_oldest_go() -> None:
    large = [archive_of(noise(64 * 40_000, number), block=64) for number in range(6)]

    async def test(s: Setting) -> None:
        most = SMALLEST_BUDGET // 8
        for archive in large:
            s.reads.backings.release(await s.open(archive))
            await s.closed()
            assert s.reads.backings.memory <= most
        assert s.reads.backings.memory > most // 2

    run(test)


def test_what_is_asked_for_again_and_again_is_kept_until_all_has_been() -> None:
    size = 4096
    data = noise(2 * BLOCK)

    async def test(s: Setting) -> None:
        backing = await s.open(archive_of(data))

        async def read(place: int) -> None:
            assert await s.read(backing, place, size) == data[place : place + size]

        for _ in range(2 * BLOCK // size):
            await read(5 * size + 512)
        for place in reversed(range(0, BLOCK, size)):
            await read(place)
        assert s.count("decoded") == 1
        await read(0)
        assert s.count("decoded") == 2, "the kernel has it all, so it is kept no more"

    run(test)


def test_however_many_readers_one_decode() -> None:
    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)

        async def one(offset: int) -> None:
            assert await s.read(backing, offset, 1000) == DATA[offset : offset + 1000]

        async with trio.open_nursery() as nursery:
            for offset in range(200, 208):
                nursery.start_soon(one, offset)
        assert s.count("decoded") == 1
        assert s.count("found") + s.count("joined") == 7

    run(test)


def test_a_damaged_block_costs_its_bytes_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    sections = [noise(4 * BLOCK, 1), noise(2 * BLOCK, 2)]
    whole = b"".join(sections)
    bad = bytearray(archive_of(*sections))
    bad[bad.index(whole[2 * BLOCK : 2 * BLOCK + 50]) + 7] ^= 1
    lost = range(2 * BLOCK, 3 * BLOCK)

    async def test(s: Setting) -> None:
        backing = await s.open(bytes(bad))
        for begin, size in ((lost.start, 1), (lost.stop - 1, 100), (0, REQUEST), (lost.start - 9, 10)):
            with pytest.raises(FUSEError) as caught:
                await s.read(backing, begin, size)
            assert caught.value.errno == errno.EIO
        for begin, end in ((0, lost.start), (lost.stop, len(whole))):
            assert await s.read(backing, begin, end - begin) == whole[begin:end]
        assert s.count("failed") > 0

    run(test)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["m.brv"]


def test_a_damaged_program_costs_its_section(caplog: pytest.LogCaptureFixture) -> None:
    sections = [noise(1000, number) for number in range(3)]
    bad = bytearray(archive_of(*sections))
    bad[bad.index(sections[1]) - 8] ^= 1  # in its program

    async def test(s: Setting) -> None:
        backing = await s.open(bytes(bad))
        assert await s.read(backing, 0, 1000) == sections[0]
        with pytest.raises(FUSEError):
            await s.read(backing, 1999, 2)
        assert await s.read(backing, 2000, 5000) == sections[2]

    run(test)
    assert len(caplog.records) == 1


def test_large_programs_are_made_one_at_a_time() -> None:
    """Sections that say once what they repeat: each prologue has more than 1 MiB."""
    node = Repeat(2, Lit(Raw()))
    length = (1 << 20) + 8
    size = bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
    parts = []
    for number in range(4):
        flat = noise(length, number) * 2
        form = (64, length // 4, 1 << 12, to_wire(node), size + flat[:length])
        parts.append(Part(SectionKind.TENSOR, "U64", *form, [b""] * 65, flat))
    whole = original(parts)

    async def test(s: Setting) -> None:
        backing = await s.open(assemble(parts))

        async def one(begin: int) -> None:
            assert await s.read(backing, begin, REQUEST) == whole[begin : begin + REQUEST]

        async with trio.open_nursery() as nursery:
            for begin in (5, 5, 5, length * 2 - 9, length * 2 - 9, length * 4 + 1, length * 6, 5):
                nursery.start_soon(one, begin)
        assert s.count("program_bytes") > 4 * length

    run(test, 128 << 20)


def refused(sections: int) -> bytes:
    """An archive of sections with a program that breaks a rule, behind a prologue of 1 MiB."""
    length = (1 << 20) + 8
    size = bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
    parts = []
    for number in range(sections):
        flat = noise(length, number)
        form = (8, 2 * length, 1 << 20, to_wire(Repeat(2, Lit(Raw()))), size + flat)
        parts.append(Part(SectionKind.TENSOR, "U8", *form, [b""] * 3, flat * 2))
    return assemble(parts)


def test_what_finding_out_took_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    archive = refused(1)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                with pytest.raises(FUSEError):
                    await s.read(backing, 5, 1)
            assert tracemalloc.get_traced_memory()[0] < MEGABYTE
        finally:
            tracemalloc.stop()
            gc.enable()

    run(test)


def test_one_finds_out_at_a_time(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = refused(1)
    both = threading.Barrier(2)
    met = []

    def read_into(self: Reader, offset: int, out: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.2))
        real(self, offset, out)

    real = Reader.read_into
    monkeypatch.setattr(Reader, "read_into", read_into)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)

        async def one() -> None:
            with pytest.raises(FUSEError):
                await s.read(backing, 5, 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)

    run(test, 4 * SMALLEST_BUDGET)
    assert not met


def test_what_programs_had_goes_back_to_the_system() -> None:
    length = 40_000
    size = bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
    parts = []
    for number in range(2000):
        flat = noise(length, number)
        form = (8, 2 * length, 1 << 17, to_wire(Repeat(2, Lit(Raw()))), size + flat)
        parts.append(Part(SectionKind.TENSOR, "U8", *form, [b""], flat * 2))
    archive, whole = assemble(parts), original(parts)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        for begin in range(0, len(whole), REQUEST):
            assert await s.read(backing, begin, REQUEST) == whole[begin : begin + REQUEST]
        programs, before = s.count("program_bytes"), _resident()
        assert programs > 2000 * length
        # The ones used longest ago, which lie below the others in memory.
        s.reads.front.limit(programs)
        assert s.count("program_bytes") <= programs // 2
        with trio.fail_after(20):
            while _resident() > before - programs // 3:
                await trio.lowlevel.checkpoint()
        s.reads.front.limit(8 * SMALLEST_BUDGET)
        assert await s.read(backing, 0, REQUEST) == whole[:REQUEST]

    run(test, 8 * SMALLEST_BUDGET)


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_budget_holds() -> None:
    data = noise(96 << 20)
    archive = archive_of(data)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        most = 0

        async def one(start: int) -> None:
            nonlocal most
            for step in range(16):
                begin = (start * 67 + step * 9) % 700 * BLOCK + 77
                assert await s.read(backing, begin, REQUEST) == data[begin : begin + REQUEST]
                most = max(most, s.count("cached_bytes") + s.reads.backings.memory)

        async with trio.open_nursery() as nursery:
            for start in range(40):
                nursery.start_soon(one, start)
        assert SMALLEST_BUDGET // 2 < most <= SMALLEST_BUDGET

    run(test)


def test_the_least_recently_used_goes() -> None:
    data = noise(64 << 20)
    archive = archive_of(data)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        await s.read(backing, 0, 1)
        for begin in range(BLOCK, len(data), BLOCK):
            await s.read(backing, begin, 1)
            assert await s.read(backing, 5, 1) == data[5:6]
        blocks = len(data) // BLOCK
        assert s.count("decoded") == blocks
        await s.read(backing, len(data) - 1, 1)
        assert s.count("decoded") == blocks
        assert await s.read(backing, BLOCK, 1) == data[BLOCK : BLOCK + 1]
        assert s.count("decoded") == blocks + 1

    run(test)


def test_extents_of_any_size_share_the_budget() -> None:
    sizes = [4096 << power for power in range(9)] * 4
    sections = [noise(size, number) for number, size in enumerate(sizes)]
    whole = b"".join(sections)
    archive = archive_of(*sections, block=1 << 20)
    chance = random.Random(1)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        for _ in range(600):
            begin = chance.randrange(len(whole))
            assert await s.read(backing, begin, 100) == whole[begin : begin + 100]
            assert s.count("cached_bytes") <= SMALLEST_BUDGET

    run(test)


def test_memory_that_was_given_back_is_not_made_huge_pages_again() -> None:
    data = noise(24 << 20)
    archives = [archive_of(data, block=block) for block in (8 << 10, 64 << 10, 512 << 10)]

    async def test(s: Setting) -> None:
        for archive in archives:
            backing = await s.open(archive)
            for begin in range(0, len(data), 8 << 10):
                assert await s.read(backing, begin, 1) == data[begin : begin + 1]
        assert _huge() - before <= s.count("cached_bytes")

    before = _huge()
    run(test)


def _huge() -> int:
    """Bytes of this process's memory that the kernel may make huge pages of."""
    size = huge = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:"):
            huge += size * (" hg" in line)
    return huge


def test_reads_here_and_there_find_memory_in_reserve() -> None:
    data = noise(24 << 20)
    archive = archive_of(data)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        blocks = iter(range(0, len(data), BLOCK))
        while s.count("cached_bytes") - s.count("decoded") * BLOCK < 5 * MEGABYTE:
            await s.read(backing, next(blocks), 1)
        for begin in blocks:
            await s.read(backing, begin, 1)
        assert s.count("cached_bytes") >= len(data)
        s.reads.front.limit(0)
        while s.count("cached_bytes") > MEGABYTE:
            await trio.lowlevel.checkpoint()

    run(test, 64 * MEGABYTE)


def test_what_a_reader_needs_next_is_decoded_ahead_once_and_then_let_go() -> None:
    data = noise(32 << 20)
    archive = archive_of(data[:5000], data[5000:])

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        for begin in range(0, len(data), REQUEST):
            assert await s.read(backing, begin, REQUEST) == data[begin : begin + REQUEST]
        runs = len(data) // RUN
        assert s.count("ahead") > runs * 3 // 4
        assert s.count("ahead") + s.count("decoded") <= runs + 16
        # With as much in reserve.
        assert s.count("cached_bytes") <= 2 * (12 << 20) + (4 << 20)

    run(test, 8 * SMALLEST_BUDGET)


@pytest.mark.parametrize("block", [64, 4096, 8192 + 64, BLOCK, 3 * BLOCK])
def test_reading_ahead_meets_blocks_that_are_there(block: int) -> None:
    data = noise(6 << 20)
    archive = archive_of(data[:777], data[777:], block=block)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        order = random.Random(block)
        for _ in range(8):
            begin = order.randrange(len(data) - 5000)
            assert await s.read(backing, begin, 5000) == data[begin : begin + 5000]
        for begin in range(0, len(data), 100_000):
            assert await s.read(backing, begin, 100_000) == data[begin : begin + 100_000]
        assert s.count("ahead") > 0

    run(test)


def test_readers_side_by_side_are_each_read_ahead_for() -> None:
    data = noise(48 << 20)
    archive = archive_of(data)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        for step in range(12):
            for reader in range(4):
                begin = reader * (12 << 20) + step * REQUEST
                assert await s.read(backing, begin, REQUEST) == data[begin : begin + REQUEST]
        assert s.count("ahead") > len(data) // RUN // 2

    run(test, 8 * SMALLEST_BUDGET)


def test_reads_here_and_there_decode_no_more_than_they_need() -> None:
    data = noise(32 << 20)
    archive = archive_of(data)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        for step in range(200):
            begin = (step * 77 % 250 + 1) * BLOCK + 5000
            assert await s.read(backing, begin, 4096) == data[begin : begin + 4096]
        assert (s.count("ahead"), s.count("decoded")) == (0, 200)

    run(test)


def test_a_range_of_many_small_sections() -> None:
    sections = [noise(16 + number % 7, number) for number in range(3000)]
    whole = b"".join(sections)
    archive = archive_of(*sections, block=64)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        assert await s.read(backing, 0, len(whole)) == whole
        assert await s.read(backing, 3, len(whole)) == whole[3:]
        assert s.count("cached_bytes") == 0

    run(test)


def test_reading_ahead_comes_to_many_small_sections() -> None:
    """Of which none is large enough to be kept."""
    data, small = noise(4 << 20), [noise(500, number) for number in range(1000)]
    archive = archive_of(data, *small)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        assert backing.front_file is not None
        out = np.empty(REQUEST, np.uint8)
        for begin in range(0, len(data), REQUEST):
            assert backing.front_file.read(begin, out)
            assert out.tobytes() == data[begin : begin + REQUEST]
        assert s.count("ahead") > 0

    run(test)


def with_large_programs(number: int, sections: int) -> tuple[bytes, bytes]:
    """An archive, and what it is of: a table of symbols of 16 bits takes half a megabyte and more."""
    parts = [noise(128, 1000 * number + place) for place in range(sections)]
    program = "Lit huffman(max=11, streams=1)"
    return assemble([encoded(program, 16, part, 64) for part in parts]), b"".join(parts)


def test_programs_go_when_they_take_too_much() -> None:
    archive, whole = with_large_programs(0, 100)

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        taken = []
        for begin in range(0, len(whole), 128):
            assert await s.read(backing, begin, 128) == whole[begin : begin + 128]
            taken.append(s.count("program_bytes"))
        assert SMALLEST_BUDGET // 4 < max(taken) <= SMALLEST_BUDGET // 2
        # One read of all is made of several.
        assert await s.read(backing, 0, len(whole)) == whole
        assert s.count("program_bytes") <= SMALLEST_BUDGET // 2

    run(test)


def test_programs_that_were_read_longest_ago_go_first() -> None:
    made = [with_large_programs(number, 6) for number in range(4)]

    async def test(s: Setting) -> None:
        opened = [await s.open(archive) for archive, _ in made]
        for number in (0, 1, 2, 0, 3):
            assert await s.read(opened[number], 0, 6 * 128) == made[number][1]
        for number in (0, 2, 3, 1):
            damage_records(opened[number])
        for number in (0, 2, 3):
            assert await s.read(opened[number], 0, 6 * 128) == made[number][1]
        with pytest.raises(FUSEError):
            await s.read(opened[1], 0, 6 * 128)

    run(test)


def test_programs_may_go_at_any_time() -> None:
    data = noise(4 << 20)
    archive = archive_of(*(data[begin : begin + (1 << 18)] for begin in range(0, len(data), 1 << 18)))

    async def test(s: Setting) -> None:
        backing = await s.open(archive)
        stop = threading.Event()

        def drop() -> None:
            while not stop.is_set():
                s.reads.front.limit(0)
                s.reads.front.limit(SMALLEST_BUDGET)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, drop)
            for step in range(60):
                begin = step * 99_991 % len(data)
                assert await s.read(backing, begin, 300_000) == data[begin : begin + 300_000]
            stop.set()

    run(test)


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="below the least"):
        Reads(SMALLEST_BUDGET - 1, 1, Reader)
