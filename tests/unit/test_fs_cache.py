"""The cache of decoded extents: right bytes, one decode an extent, and never more memory than given."""

import errno
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from pyfuse3 import FUSEError

from brevisfs.archive import BlockDamaged, Section
from brevisfs.archive import Kind as SectionKind
from brevisfs.fs._backing import Backing, Backings
from brevisfs.fs._buffers import PIECE, Buffers, Bytes
from brevisfs.fs._cache import SMALLEST_BUDGET, ExtentCache
from brevisfs.fs._readahead import REQUEST, WINDOW
from brevisfs.store import Identity, Kind
from tests.stores import noise


class FakeReader:
    """Serves bytes as an archive does, counts decodes, fails where it is told to.

    All is one section, unless `section` says how long each is.
    """

    def __init__(self, data: bytes, memory: int = 0, section: int = 0) -> None:
        self.data = data
        self.section = section or len(data)
        self.size = len(data)
        self.memory = memory
        self.programs = 0
        self.damage: range = range(0)
        self.mistake: Exception | None = None
        self.at_once = False
        self.decodes: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def section_at(self, offset: int) -> Section:
        index = offset // self.section
        begin = index * self.section
        size = min(self.section, self.size - begin)
        return Section(index, SectionKind.TENSOR, 0, begin, 8, size, PIECE, 0, 0, 0)

    def read_into(self, offset: int, out: Bytes) -> None:
        self.decodes.append((offset, len(out)))
        self.threads.add(threading.get_ident())
        assert self.gate.wait(60)
        if self.mistake is not None:
            raise self.mistake
        if max(offset, self.damage.start) < min(offset + len(out), self.damage.stop):
            raise BlockDamaged("checksum", 0, self.damage.start, self.damage.stop, 0)
        out[:] = np.frombuffer(self.data[offset : offset + len(out)], np.uint8)

    def read_at_once(self, offset: int, out: Bytes) -> bool:
        if self.at_once:
            self.read_into(offset, out)
        return self.at_once

    def read_job(self, offset: int, out: Bytes) -> None:
        return None

    def drop_programs(self) -> None:
        self.memory -= self.programs
        self.programs = 0


class Setting:
    """A cache with archives to read."""

    def __init__(self, budget: int = SMALLEST_BUDGET, threads: int = 2) -> None:
        self.readers: list[FakeReader] = []
        self.backings = Backings(lambda _: self.readers[-1])
        self.cache = ExtentCache(budget, threads, self.backings)

    async def open(self, data: bytes, memory: int = 0, section: int = 0) -> Backing:
        self.readers.append(FakeReader(data, memory, section))
        file = os.open(os.devnull, os.O_RDONLY)
        identity = Identity(0, len(self.readers), 0, 0, 0)
        return await self.backings.adopt(Backing("m.brv", Kind.ARCHIVE, identity, file))

    async def read(self, backing: Backing, offset: int, size: int) -> bytes:
        return bytes(await self.cache.read(backing, offset, size))


@asynccontextmanager
async def setting(**options: int) -> AsyncIterator[Setting]:
    made = Setting(**options)
    try:
        yield made
    finally:
        made.cache.close()


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        with trio.fail_after(100):
            await test()

    trio.run(limited)


DATA = noise(5 * PIECE + 12_345)
THREADS = 2 * (WINDOW + REQUEST)
"""What the threads of the smallest budget are given."""


def test_any_range() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            ends = [
                0,
                1,
                511,
                PIECE - 1,
                PIECE,
                PIECE + 1,
                3 * PIECE,
                len(DATA) - 1,
                len(DATA),
                len(DATA) + 9,
            ]
            for begin in ends:
                for size in (0, 1, 4096, PIECE, PIECE + 1, REQUEST, len(DATA) + 1):
                    assert await s.read(backing, begin, size) == DATA[begin : begin + size]

    run(test)


def test_what_is_ready_is_not_decoded_again_even_after_reopening() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            await s.read(backing, 100, 10)
            await s.read(backing, PIECE - 10, 20)
            s.backings.release(backing)
            assert len(s.backings) == 0
            file = os.open(os.devnull, os.O_RDONLY)
            backing = await s.backings.adopt(Backing("m.brv", Kind.ARCHIVE, backing.identity, file))
            await s.read(backing, 0, 2 * PIECE)
            assert sorted(s.readers[0].decodes)[:2] == [(0, PIECE), (PIECE, PIECE)]
            assert s.cache.counters.decoded == 2

    run(test)


def test_however_many_readers_one_decode() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            reader = s.readers[0]
            reader.gate.clear()
            answers: list[bytes] = []

            async def one(offset: int) -> None:
                answers.append(await s.read(backing, offset, 1000))

            async with trio.open_nursery() as nursery:
                for offset in range(8):
                    nursery.start_soon(one, offset)
                await trio.testing.wait_all_tasks_blocked()
                assert s.cache.counters.joined + s.cache.counters.decoded >= 1
                reader.gate.set()
            assert sorted(answers) == sorted(DATA[offset : offset + 1000] for offset in range(8))
            assert reader.decodes == [(0, PIECE)]
            assert s.cache.counters.decoded == 1

    run(test)


def test_a_damaged_block_is_eio_and_the_rest_of_its_extent_reads(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            s.readers[0].damage = range(PIECE + 1000, PIECE + 2000)
            for begin, size in ((PIECE, REQUEST), (PIECE + 1999, 1), (0, 2 * PIECE)):
                with pytest.raises(FUSEError) as caught:
                    await s.read(backing, begin, size)
                assert caught.value.errno == errno.EIO
            for begin, size in ((PIECE, 1000), (PIECE + 2000, PIECE), (0, PIECE + 1000)):
                assert await s.read(backing, begin, size) == DATA[begin : begin + size]
            assert s.cache.counters.failed > 0

    run(test)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["m.brv"]


def test_a_failure_wakes_all_and_is_not_remembered() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            reader = s.readers[0]
            reader.damage = range(PIECE)
            reader.gate.clear()
            errors: list[int] = []

            async def one() -> None:
                try:
                    await s.read(backing, 0, 10)
                except FUSEError as error:
                    errors.append(error.errno)

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(one)
                await trio.testing.wait_all_tasks_blocked()
                reader.gate.set()
            assert errors == [errno.EIO] * 4
            reader.damage = range(0)
            assert await s.read(backing, 0, 10) == DATA[:10]

    run(test)


def test_a_mistake_of_the_reader_is_not_taken_for_damage() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            s.readers[0].mistake = ZeroDivisionError()
            with pytest.raises(ZeroDivisionError):
                await s.read(backing, 0, 10)

    run(test)


def test_the_budget_holds() -> None:
    async def test() -> None:
        data = bytes(512 * PIECE)
        async with setting() as s:
            backing = await s.open(data, memory=3 << 20)
            most = 0

            async def one(start: int) -> None:
                nonlocal most
                for step in range(32):
                    await s.read(backing, (start * 67 + step * 9) % 500 * PIECE + 77, REQUEST)
                    most = max(most, s.cache.held)

            async with trio.open_nursery() as nursery:
                for start in range(40):
                    nursery.start_soon(one, start)
            assert most + s.backings.memory + THREADS <= SMALLEST_BUDGET
            assert most > SMALLEST_BUDGET // 2

    run(test)


def test_the_least_recently_used_goes() -> None:
    async def test() -> None:
        async with setting() as s:
            room = (SMALLEST_BUDGET - THREADS) // PIECE
            backing = await s.open(bytes((room + 1) * PIECE))
            for index in range(room):
                await s.read(backing, index * PIECE, 1)
            await s.read(backing, 0, 1)
            await s.read(backing, room * PIECE, 1)
            decodes = s.readers[0].decodes
            assert len(decodes) == room + 1
            await s.read(backing, 0, 1)
            assert len(decodes) == room + 1
            await s.read(backing, PIECE, 1)
            assert len(decodes) == room + 2

    run(test)


def test_what_a_reader_needs_next_is_decoded_ahead_once_and_then_let_go() -> None:
    async def test() -> None:
        async with setting(budget=4 * SMALLEST_BUDGET) as s:
            data = noise(64 << 20)
            backing = await s.open(data, section=len(data) // 2 + 1000)
            for offset in range(0, len(data), REQUEST):
                assert await s.read(backing, offset, REQUEST) == data[offset : offset + REQUEST]
                assert s.cache.held <= 16 << 20
            assert s.cache.counters.decoded <= 4
            decodes = s.readers[0].decodes
            assert sum(size for _, size in decodes) == len(data)
            assert s.cache.counters.ahead + s.cache.counters.decoded == len(decodes)

    run(test)


def test_readers_side_by_side_are_each_read_ahead_for() -> None:
    async def test() -> None:
        async with setting(budget=8 * SMALLEST_BUDGET) as s:
            data = noise(64 << 20)
            backing = await s.open(data)
            for step in range(16):
                for reader in range(4):
                    offset = reader * (16 << 20) + step * REQUEST
                    assert await s.read(backing, offset, REQUEST) == data[offset : offset + REQUEST]
            assert s.cache.counters.decoded <= 4 * 4

    run(test)


def test_reads_here_and_there_decode_no_more_than_they_need() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(noise(32 << 20))
            for step in range(200):
                await s.read(backing, (step * 77 % 250 + 1) * PIECE + 5000, 4096)
            assert s.cache.counters.ahead == 0
            assert all(size == PIECE for _, size in s.readers[0].decodes)

    run(test)


def test_readers_that_stopped_make_room_for_others() -> None:
    async def test() -> None:
        async with setting() as s:
            data = noise(32 << 20)
            backings = [await s.open(data) for _ in range(8)]
            for backing in backings:
                for offset in range(0, 4 << 20, REQUEST):
                    await s.read(backing, offset, REQUEST)
            before = s.cache.counters.ahead
            for step in range(700):
                await s.read(backings[0], 0, 4096 + step)
            for offset in range(8 << 20, 16 << 20, REQUEST):
                await s.read(backings[1], offset, REQUEST)
            assert s.cache.counters.ahead > before
            assert s.cache.held + THREADS <= SMALLEST_BUDGET

    run(test)


def test_small_reads_are_decoded_at_once_where_that_does_not_wait() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            reader = s.readers[0]
            reader.at_once = True
            # Nothing that had a thread wait would be answered.
            reader.threads.clear()
            for offset, size in [(10, 4096), (2 * PIECE - 100, 200), (PIECE - 5, 10), (len(DATA) - 9, 99)]:
                assert await s.read(backing, offset, size) == DATA[offset : offset + size]
            assert reader.threads == {threading.get_ident()}
            pieces = [(0, PIECE), (PIECE, PIECE), (2 * PIECE, PIECE), (5 * PIECE, len(DATA) - 5 * PIECE)]
            assert reader.decodes == pieces
            counters = s.cache.counters
            assert (counters.requests, counters.decoded, counters.found) == (4, 4, 2)
            assert await s.read(backing, 3 * PIECE, REQUEST) == DATA[3 * PIECE :]
            assert len(reader.threads) == 2
            many = await s.open(DATA[:6000], section=2000)
            s.readers[1].at_once = True
            assert await s.read(many, 0, 6000) == DATA[:6000]

    run(test)


def test_damage_found_at_once_costs_what_it_does_in_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            s.readers[0].at_once = True
            s.readers[0].damage = range(PIECE + 100, PIECE + 200)
            with pytest.raises(FUSEError) as caught:
                await s.read(backing, PIECE + 150, 4)
            assert caught.value.errno == errno.EIO
            assert await s.read(backing, PIECE - 50, 100) == DATA[PIECE - 50 : PIECE + 50]
            assert s.cache.held == PIECE + s.cache._buffers._spare

    run(test)
    assert len(caplog.records) == 1


def test_what_answers_a_request_is_not_let_go_of_for_the_rest_of_it() -> None:
    async def test() -> None:
        async with setting() as s:
            data = b"".join(noise(PIECE, piece) for piece in range(8)) * (SMALLEST_BUDGET // PIECE // 4)
            backing = await s.open(data)
            s.readers[0].at_once = True
            for offset in range(0, len(data), 2 * PIECE):
                await s.read(backing, offset, 4)
            # There is no room for what the request ends with, and what it begins with was used last.
            oldest = next(iter(s.cache._oldest))
            assert oldest.begin > 0
            begin = oldest.end - 50
            assert await s.read(backing, begin, 100) == data[begin : begin + 100]

    run(test)


def test_a_full_cache_lets_go_of_no_more_than_it_needs() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(bytes(2 * SMALLEST_BUDGET))
            for offset in range(0, SMALLEST_BUDGET, PIECE):
                await s.read(backing, offset * 2, 4)
            full = s.cache.held
            s.readers[0].memory += 5 * PIECE
            for offset in range(0, SMALLEST_BUDGET // 4, PIECE):
                await s.read(backing, offset * 2 + PIECE, 4)
                assert s.cache.held >= full - 6 * PIECE

    run(test)


def test_small_files_take_little() -> None:
    async def test() -> None:
        async with setting() as s:
            for index in range(300):
                backing = await s.open(noise(3000, index))
                assert await s.read(backing, 0, 4096) == noise(3000, index)
            assert s.cache.held == 300 * 4096

    run(test)


def test_buffers_are_used_again_and_given_back() -> None:
    buffers = Buffers(2 * WINDOW)
    window, small = (buffers.take(size) for size in (WINDOW, 1))
    assert (len(window), len(small)) == (WINDOW, 4096)
    assert buffers.held == WINDOW + 4096
    window[:2] = 7
    buffers.give(window)
    assert (buffers.growth(WINDOW - 1), buffers.growth(1)) == (0, 4096)
    assert list(buffers.take(WINDOW)[:2]) == [7, 7]
    assert buffers.growth(WINDOW) == WINDOW
    buffers.give(small)
    assert buffers.held == WINDOW + 4096
    assert buffers.trim()
    assert buffers.held == WINDOW
    assert not buffers.trim()


def test_usual_blocks_share_a_huge_page_and_are_given_back_one_by_one() -> None:
    buffers = Buffers(3 * PIECE)
    pieces = [buffers.take(PIECE) for _ in range(20)]
    assert buffers.held == 4 << 20
    for number, piece in enumerate(pieces):
        piece[:] = number
    assert all((piece == number).all() for number, piece in enumerate(pieces))
    # More waits to be used already than is kept.
    for piece in pieces[:5]:
        buffers.give(piece)
    assert buffers.held == (4 << 20) - 5 * PIECE
    assert buffers.trim()
    assert buffers.held == 15 * PIECE
    assert all((piece == number).all() for number, piece in enumerate(pieces[5:], 5))
    buffers.give(pieces[5])
    assert (buffers.growth(PIECE), buffers.held) == (0, 15 * PIECE)


def test_damage_ahead_is_told_to_the_request_for_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with setting() as s:
            data = noise(8 << 20)
            backing = await s.open(data)
            s.readers[0].damage = range(5 << 20, (5 << 20) + 1)
            for offset in range(0, len(data), REQUEST):
                if offset == 5 << 20:
                    with pytest.raises(FUSEError):
                        await s.read(backing, offset, REQUEST)
                else:
                    assert await s.read(backing, offset, REQUEST) == data[offset : offset + REQUEST]

    run(test)
    assert len(caplog.records) == 1


def test_programs_go_when_they_take_too_much() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(bytes(8 * PIECE), memory=SMALLEST_BUDGET)
            s.readers[0].programs = SMALLEST_BUDGET - 1000
            assert await s.read(backing, 0, 4) == bytes(4)
            assert s.backings.memory == 1000

    run(test)


def test_an_archive_is_not_closed_under_a_decode() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            reader = s.readers[0]
            reader.gate.clear()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(s.read, backing, 0, 10)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            s.backings.release(backing)
            os.fstat(backing.file)
            reader.gate.set()
            while len(s.backings):
                await trio.lowlevel.checkpoint()
            with pytest.raises(OSError):
                os.fstat(backing.file)

    run(test)


def test_what_is_cached_of_an_archive_does_not_keep_its_reader() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(noise(4 << 20))
            for begin in range(0, 4 << 20, REQUEST):
                await s.read(backing, begin, REQUEST // 2)
            reader = weakref.ref(s.readers.pop())
            s.backings.release(backing)
            while len(s.backings):
                await trio.lowlevel.checkpoint()
            del backing
            assert s.cache.held
            # A thread may be about to let go of it.
            while reader() is not None:
                await trio.lowlevel.checkpoint()

    run(test)


def test_too_small_a_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="below the least"):
        ExtentCache(SMALLEST_BUDGET - 1, 1, Backings(lambda _: FakeReader(b"")))
