"""The cache of decoded extents: right bytes, one decode an extent, and never more memory than given."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from pyfuse3 import FUSEError

from brevisfs.archive import BlockDamaged
from brevisfs.fs._backing import Backing, Backings
from brevisfs.fs._cache import EXTENT, LARGEST_REQUEST, SMALLEST_BUDGET, ExtentCache
from brevisfs.store import Identity, Kind
from tests.stores import noise


class FakeReader:
    """Serves bytes as an archive does, counts decodes, fails where it is told to."""

    def __init__(self, data: bytes, memory: int = 0) -> None:
        self.data = data
        self.size = len(data)
        self.memory = memory
        self.programs = 0
        self.damage: range = range(0)
        self.mistake: Exception | None = None
        self.decodes: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def read_into(self, offset: int, out: memoryview) -> None:
        self.decodes.append((offset, len(out)))
        assert self.gate.wait(60)
        if self.mistake is not None:
            raise self.mistake
        if max(offset, self.damage.start) < min(offset + len(out), self.damage.stop):
            raise BlockDamaged("checksum", 0, self.damage.start, self.damage.stop, 0)
        out[:] = self.data[offset : offset + len(out)]

    def drop_programs(self) -> None:
        self.memory -= self.programs
        self.programs = 0


class Setting:
    """A cache with archives to read."""

    def __init__(self, budget: int = SMALLEST_BUDGET, threads: int = 2) -> None:
        self.readers: list[FakeReader] = []
        self.backings = Backings(lambda _: self.readers[-1])
        self.cache = ExtentCache(budget, threads, self.backings)

    async def open(self, data: bytes, memory: int = 0) -> Backing:
        self.readers.append(FakeReader(data, memory))
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


DATA = noise(5 * EXTENT + 12_345)


def test_any_range() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            ends = [
                0,
                1,
                511,
                EXTENT - 1,
                EXTENT,
                EXTENT + 1,
                3 * EXTENT,
                len(DATA) - 1,
                len(DATA),
                len(DATA) + 9,
            ]
            for begin in ends:
                for size in (0, 1, 4096, EXTENT, EXTENT + 1, LARGEST_REQUEST, len(DATA) + 1):
                    assert await s.read(backing, begin, size) == DATA[begin : begin + size]

    run(test)


def test_what_is_ready_is_not_decoded_again_even_after_reopening() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            await s.read(backing, 100, 10)
            await s.read(backing, EXTENT - 10, 20)
            s.backings.release(backing)
            assert len(s.backings) == 0
            file = os.open(os.devnull, os.O_RDONLY)
            backing = await s.backings.adopt(Backing("m.brv", Kind.ARCHIVE, backing.identity, file))
            await s.read(backing, 0, 2 * EXTENT)
            assert sorted(s.readers[0].decodes) == [(0, EXTENT), (EXTENT, EXTENT)]

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
            assert reader.decodes == [(0, EXTENT)]
            assert s.cache.counters.decoded == 1

    run(test)


def test_a_damaged_block_is_eio_and_the_rest_of_its_extent_reads(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            s.readers[0].damage = range(EXTENT + 1000, EXTENT + 2000)
            for begin, size in ((EXTENT, LARGEST_REQUEST), (EXTENT + 1999, 1), (0, 2 * EXTENT)):
                with pytest.raises(FUSEError) as caught:
                    await s.read(backing, begin, size)
                assert caught.value.errno == errno.EIO
            for begin, size in ((EXTENT, 1000), (EXTENT + 2000, EXTENT), (0, EXTENT + 1000)):
                assert await s.read(backing, begin, size) == DATA[begin : begin + size]
            assert s.cache.held <= 3 * EXTENT
            assert s.cache.counters.failed > 0

    run(test)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["m.brv"]


def test_a_failure_wakes_all_and_is_not_remembered() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(DATA)
            reader = s.readers[0]
            reader.damage = range(EXTENT)
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
        data = bytes(64 * EXTENT)
        async with setting() as s:
            backing = await s.open(data, memory=3 << 20)
            most = 0

            async def one(start: int) -> None:
                nonlocal most
                for step in range(32):
                    await s.read(backing, (start * 7 + step * 2) % 62 * EXTENT + 77, LARGEST_REQUEST)
                    most = max(most, s.cache.held)

            async with trio.open_nursery() as nursery:
                for start in range(40):
                    nursery.start_soon(one, start)
            threads = 2 * 2 * EXTENT
            assert most + s.backings.memory + threads <= SMALLEST_BUDGET
            assert most > SMALLEST_BUDGET // 2

    run(test)


def test_the_least_recently_used_goes() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(bytes(64 * EXTENT))
            room = (SMALLEST_BUDGET - 2 * 2 * EXTENT) // EXTENT
            for index in range(room):
                await s.read(backing, index * EXTENT, 1)
            await s.read(backing, 0, 1)
            await s.read(backing, room * EXTENT, 1)
            decodes = s.readers[0].decodes
            assert len(decodes) == room + 1
            await s.read(backing, 0, 1)
            assert len(decodes) == room + 1
            await s.read(backing, EXTENT, 1)
            assert len(decodes) == room + 2

    run(test)


def test_programs_go_when_they_take_too_much() -> None:
    async def test() -> None:
        async with setting() as s:
            backing = await s.open(bytes(8 * EXTENT), memory=SMALLEST_BUDGET)
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


def test_too_small_a_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="below the least"):
        ExtentCache(SMALLEST_BUDGET - 1, 1, Backings(lambda _: FakeReader(b"")))
