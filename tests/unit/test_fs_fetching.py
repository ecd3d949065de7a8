"""What is stored is read ahead past the page cache, if the kernel has not got it in memory."""

import ctypes
import mmap
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import trio
from pyfuse3 import FUSEError

from brevisfs.fs._backing import Backing
from brevisfs.fs._reads import SMALLEST_BUDGET
from brevisfs.fs._tuning import REQUEST
from tests.archives import opened
from tests.reads import Setting, archive_of, run
from tests.stores import noise

MEGABYTE = 1 << 20
CHUNK = 512 << 10
NOBODY = 65534
DATA = noise(48 * MEGABYTE)
CUTS = (0, 5 * MEGABYTE + 77, 30 * MEGABYTE, len(DATA))
ARCHIVE = archive_of(*(DATA[begin:end] for begin, end in pairwise(CUTS)))
LARGE = 8 * SMALLEST_BUDGET
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def drop(file: int, begin: int = 0, size: int = 0) -> None:
    """The kernel has no page of these bytes; nor does it read any unasked."""
    os.fsync(file)
    os.posix_fadvise(file, begin, size, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)


def cached(file: int) -> int:
    """Bytes of a file that the kernel has in memory."""
    size = os.fstat(file).st_size
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    address = LIBC.mmap(None, size, 0, mmap.MAP_SHARED, file, 0)
    assert LIBC.mincore(address, size, pages.ctypes.data) == 0
    assert LIBC.munmap(address, size) == 0
    return int((pages & 1).sum()) * mmap.PAGESIZE


def direct_reads_work() -> bool:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(CHUNK))
        drop(file.fileno())
        try:
            other = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return False
        try:
            with mmap.mmap(-1, CHUNK) as room:
                return os.preadv(other, [room], 0) == CHUNK and cached(file.fileno()) == 0
        finally:
            os.close(other)


needs_direct = pytest.mark.skipif(not direct_reads_work(), reason="no file is read past the page cache here")


async def cold(s: Setting) -> Backing:
    backing = await s.open(ARCHIVE)
    drop(backing.file)
    return backing


async def read_all(s: Setting, backing: Backing, begin: int = 0, end: int = len(DATA)) -> None:
    for at in range(begin, end, REQUEST):
        assert await s.read(backing, at, REQUEST) == DATA[at : at + REQUEST]


@needs_direct
def test_a_stream_is_fetched_for_past_the_page_cache() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        await read_all(s, backing)
        assert len(ARCHIVE) - 4 * MEGABYTE < s.count("fetched_bytes") <= len(ARCHIVE)
        # Of what was read before there was a stream; whoever came too early for the rest has waited.
        assert cached(backing.file) < 2.25 * MEGABYTE
        assert s.count("failed") == 0

    run(test, LARGE)


@needs_direct
def test_with_little_memory_most_is_decoded_ahead_and_fetched_all_the_same() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        await read_all(s, backing)
        assert s.count("ahead") > s.count("decoded")
        assert s.count("fetched_bytes") > len(ARCHIVE) // 2

    run(test)


@needs_direct
def test_what_has_been_fetched_is_let_go_when_it_has_been_decoded() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        await read_all(s, backing)
        # Decoded ahead, fetched ahead, and as much in reserve.
        assert s.count("cached_bytes") <= 2 * (20 << 20) + (4 << 20)

    run(test, LARGE)


def test_what_the_kernel_has_is_left_there() -> None:
    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)
        await read_all(s, backing)
        assert s.count("fetched_bytes") == 0

    run(test, LARGE)


@needs_direct
def test_what_the_kernel_has_some_of_is_fetched_where_it_has_not() -> None:
    gap = range(20 * MEGABYTE, 28 * MEGABYTE)

    async def test(s: Setting) -> None:
        backing = await s.open(ARCHIVE)
        drop(backing.file, gap.start, len(gap))
        await read_all(s, backing)
        assert s.count("fetched_bytes") == len(gap)

    run(test, LARGE)


def test_reads_here_and_there_fetch_nothing() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        order = random.Random(1)
        for _ in range(100):
            at = order.randrange(len(DATA) - 4096)
            assert await s.read(backing, at, 4096) == DATA[at : at + 4096]
        assert s.count("fetched_bytes") == 0

    run(test, LARGE)


@needs_direct
def test_of_readers_side_by_side_each_is_fetched_for_once() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        async with trio.open_nursery() as nursery:
            for begin in range(0, len(DATA), 12 * MEGABYTE):
                for _ in range(2):
                    nursery.start_soon(read_all, s, backing, begin, begin + 12 * MEGABYTE)
        # One reads on where another began: what that had has been let go of.
        assert len(DATA) // 2 < s.count("fetched_bytes") < len(DATA) * 3 // 2

    run(test, LARGE)


def test_the_budget_holds_for_what_is_fetched() -> None:
    most = 0

    async def test(s: Setting) -> None:
        backing = await cold(s)

        async def one(begin: int) -> None:
            nonlocal most
            for at in range(begin, begin + 6 * MEGABYTE, 300_000):
                assert await s.read(backing, at, 300_000) == DATA[at : at + 300_000]
                most = max(most, s.count("cached_bytes") + s.reads.backings.memory)

        async with trio.open_nursery() as nursery:
            for begin in range(0, len(DATA) - 6 * MEGABYTE, 3 * MEGABYTE):
                nursery.start_soon(one, begin)

    run(test)
    assert SMALLEST_BUDGET // 4 < most <= SMALLEST_BUDGET


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Files of others do not tell this thread, and those that it starts, what the kernel has of them."""
    if os.getuid():
        pytest.skip("who is not root cannot be somebody else")
    LIBC.setfsuid(NOBODY)
    try:
        yield
    finally:
        LIBC.setfsuid(0)


def test_where_that_cannot_be_told_the_kernel_reads_ahead() -> None:
    async def test(s: Setting) -> None:
        LIBC.setfsuid(0)  # all but the threads of the front
        backing = await s.adopt(os.dup(file))
        drop(file)
        await read_all(s, backing, 0, 6 * MEGABYTE)
        with trio.fail_after(20):
            while cached(file) < 12 * MEGABYTE:
                await trio.lowlevel.checkpoint()
        await read_all(s, backing, 6 * MEGABYTE)
        assert s.count("fetched_bytes") == 0

    with opened(ARCHIVE) as file:
        os.fchmod(file, 0o644)
        with as_somebody_else():
            run(test, LARGE)


def test_what_has_no_room_the_kernel_reads_ahead() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        s.reads.front.limit(0)
        await read_all(s, backing, 0, 6 * MEGABYTE)
        with trio.fail_after(20):
            # So far behind what is read: decoding ahead has no room either.
            while cached(backing.file) < 7 * MEGABYTE:
                await trio.lowlevel.checkpoint()
        assert s.count("fetched_bytes") == 0

    run(test, LARGE)


def test_a_file_that_was_cut_off_costs_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        os.ftruncate(backing.file, 24 * MEGABYTE + 777)
        await read_all(s, backing, 0, 23 * MEGABYTE)
        for at in (25 * MEGABYTE, 40 * MEGABYTE):
            with pytest.raises(FUSEError):
                await s.read(backing, at, REQUEST)

    run(test, LARGE)
    assert caplog.records


def test_a_file_is_closed_while_it_is_being_fetched() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        for _ in range(20):
            file = os.dup(backing.file)
            drop(file)
            await read_all(s, backing, 8 * MEGABYTE, 11 * MEGABYTE)
            s.reads.backings.release(backing)
            await s.closed()
            backing = await s.adopt(file)

    run(test, LARGE)


def test_a_front_ends_while_it_fetches() -> None:
    async def test(s: Setting) -> None:
        backing = await cold(s)
        await read_all(s, backing, 0, 4 * MEGABYTE)

    for _ in range(5):
        run(test, LARGE)
