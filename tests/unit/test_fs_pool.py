"""The pool: what threads without the interpreter read, and when the event loop hears of it."""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
import trio

from brevisfs import _native
from brevisfs.archive import BlockDamaged, Reader
from brevisfs.fs._backing import Backing, Backings
from brevisfs.fs._cache import SMALLEST_BUDGET, ExtentCache
from brevisfs.fs._pool import DecodePool
from brevisfs.fs._readahead import REQUEST
from brevisfs.store import Identity, Kind
from tests.archives import assemble, encoded, opened, read

BLOCK = 1 << 16
FLAT = random.Random(7).randbytes(6 * REQUEST + 999)
ARCHIVE = assemble([encoded("Lit raw", 8, FLAT[:100], 64), encoded("Lit raw", 8, FLAT[100:], BLOCK)])


def job(reader: Reader, begin: int, room: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> _native.ReadJob:
    made = reader.read_job(begin, room)
    assert made is not None
    return made


def with_pool(test: Callable[[DecodePool, ExitStack], object], data: bytes = ARCHIVE) -> None:
    async def limited() -> None:
        with ExitStack() as held, trio.fail_after(60):
            pool = DecodePool(2)
            try:
                await test(pool, held)  # type: ignore[misc]
            finally:
                pool.close()

    trio.run(limited)


def never() -> None:
    raise AssertionError("what reads without the interpreter was done with it")


def test_many_reads_in_any_order_of_asking() -> None:
    async def test(pool: DecodePool, held: ExitStack) -> None:
        reader = Reader(held.enter_context(opened(ARCHIVE)))
        chance = random.Random(3)
        done: list[int] = []
        rooms: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]] = []
        jobs = []
        for number in range(60):
            begin, end = sorted(chance.choices(range(len(FLAT) + 1), k=2))
            if begin < end:
                room = np.zeros(end - begin, np.uint8)
                rooms.append((begin, room))

                def add(error: Exception | None, number: int = number) -> None:
                    assert error is None
                    done.append(number)

                jobs.append(pool.submit(never, add, ahead=True, read=job(reader, begin, room)))
        chance.shuffle(jobs)
        for one in jobs:
            pool.want(one)
        while len(done) < len(jobs):
            await trio.lowlevel.checkpoint()
        assert all(bytes(room) == FLAT[begin : begin + len(room)] for begin, room in rooms)

    with_pool(test)


def test_of_what_nobody_waits_for_it_is_told_in_the_end() -> None:
    async def test(pool: DecodePool, held: ExitStack) -> None:
        reader = Reader(held.enter_context(opened(ARCHIVE)))
        room = np.zeros(1000, np.uint8)
        told = trio.Event()
        pool.submit(never, lambda _: told.set(), ahead=True, read=job(reader, 50, room))
        await told.wait()
        assert bytes(room) == FLAT[50:1050]

    with_pool(test)


def test_a_read_that_fails_is_done_again_to_tell_why() -> None:
    bad = bytearray(ARCHIVE)
    bad[-5000] ^= 1

    async def test(pool: DecodePool, held: ExitStack) -> None:
        reader = Reader(held.enter_context(opened(bytes(bad))))
        room = np.zeros(len(FLAT), np.uint8)
        errors: list[Exception | None] = []
        told = trio.Event()

        def done(error: Exception | None) -> None:
            errors.append(error)
            told.set()

        work = pool.submit(lambda: reader.read_into(0, room), done, ahead=True, read=job(reader, 0, room))
        pool.want(work)
        await told.wait()
        assert isinstance(errors[0], BlockDamaged)

    with_pool(test)


def test_what_was_not_begun_when_the_pool_closes_is_left_alone() -> None:
    async def test(pool: DecodePool, held: ExitStack) -> None:
        reader = Reader(held.enter_context(opened(ARCHIVE)))
        for _ in range(200):
            room = np.zeros(len(FLAT), np.uint8)
            held.callback(
                lambda _: None, pool.submit(never, lambda _: None, ahead=True, read=job(reader, 0, room))
            )

    with_pool(test)


def test_what_is_to_be_prepared_first_is_no_job() -> None:
    many = [encoded("Lit raw", 8, bytes([number]) * 64, 64) for number in range(9)]
    with opened(assemble(many)) as fd:
        reader = Reader(fd)
        room = np.zeros(9 * 64, np.uint8)
        assert reader.read_job(0, room) is None
        read(reader, 0, len(room))
        assert reader.read_job(0, room) is not None
        reader.drop_programs()
        assert reader.read_job(0, room[:128]) is not None


def test_a_model_is_read_through_the_cache() -> None:
    async def test(pool: DecodePool, held: ExitStack) -> None:
        backings = Backings(Reader)
        cache = ExtentCache(SMALLEST_BUDGET, 2, backings)
        held.callback(cache.close)
        file = os.dup(held.enter_context(opened(ARCHIVE)))
        backing = await backings.adopt(Backing("m.brv", Kind.ARCHIVE, Identity.of(os.fstat(file)), file))
        for begin in range(0, len(FLAT), REQUEST):
            assert bytes(await cache.read(backing, begin, REQUEST)) == FLAT[begin : begin + REQUEST]
        assert cache.counters.ahead >= 2
        # Nothing is held for long that nobody needs.
        backings.release(backing)
        while len(backings):
            await trio.lowlevel.checkpoint()

    with_pool(test)


def test_jobs_fill_just_their_buffer() -> None:
    with opened(ARCHIVE) as fd:
        reader = Reader(fd)
        read(reader, 0, len(FLAT))
        stored = reader._prepared[1][1]
        with pytest.raises(ValueError, match="10 bytes do not fill a buffer of 11"):
            _native.ReadJob(fd, [(stored, 5, 15)], np.zeros(11, np.uint8))
