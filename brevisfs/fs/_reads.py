"""How reads are answered: by the front's threads, and here what those hand on.

The front (`brevisfs._native.front`) answers a read of a handle that it knows if all sections that it
touches are prepared and none of its blocks is damaged. For any other read, pyfuse3 calls the handler: it
prepares what is missing, and what comes after that, reads through the front's cache, and says what is wrong
if it cannot.
"""

import errno
import logging
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import trio
from pyfuse3 import FUSEError

from brevisfs._native.front import Front
from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing, Backings, Reader
from brevisfs.fs._tuning import REQUEST

log = logging.getLogger("brevisfs.fs")

SMALLEST_BUDGET = 32 * 1024 * 1024

# What a thread holds to decode: the answer, stored bytes, and the parts of blocks before they are joined.
_THREAD_MEMORY = 3 * REQUEST
# How far sections are prepared after those that a read has touched, and how much memory that takes.
_PREPARED_AHEAD, _PREPARED_SECTIONS, _PREPARED_MEMORY = 256 * REQUEST, 64, 8 * REQUEST


class Reads:
    """Answers reads of archives. Belongs to the event loop.

    `budget` bounds the bytes of decoded extents, of the open archives' indexes and programs, and of what
    `threads` decoding threads work on. `open_reader` makes a reader of an archive's descriptor. Raises
    ValueError for a budget below SMALLEST_BUDGET.
    """

    def __init__(self, budget: int, threads: int, open_reader: Callable[[int], Reader]) -> None:
        if budget < SMALLEST_BUDGET:
            raise ValueError(f"a cache of {budget} bytes is below the least, {SMALLEST_BUDGET}")
        # One more receives, and decodes what is small.
        threads = min(threads, budget // (2 * _THREAD_MEMORY) - 1)
        self._most = budget - (threads + 1) * _THREAD_MEMORY
        self._least = self._most // 2
        self.front = Front(threads, self._most)
        self.backings = Backings(open_reader, self.front, budget // 8)
        self._threads = trio.CapacityLimiter(threads)
        self._requests = 0

    def counters(self) -> dict[str, int]:
        """How reads were served: see brv_counters of native/brevis.h."""
        counters = self.front.counters()
        counters["requests"] += self._requests
        return counters

    async def read(self, backing: Backing, offset: int, size: int) -> bytes | memoryview:
        """All bytes of [offset, offset + size) that are before an archive's end.

        The backing stays the caller's meanwhile. Raises FUSEError EIO if what the range touches is damaged.
        """
        assert backing.reader is not None
        # Otherwise the front has seen it, and counted.
        self._requests += not self.front.is_attached
        end = min(offset + size, backing.reader.size)
        if offset >= end:
            return b""
        try:
            answer = await trio.to_thread.run_sync(_read, backing, offset, end, limiter=self._threads)
        except (BrevisError, OSError) as error:
            _tell(backing, offset, error)
            raise FUSEError(errno.EIO) from None
        await self._weigh(backing)
        if not backing.preparing:
            backing.preparing = True
            backing.users += 1
            trio.lowlevel.spawn_system_task(self._prepare_ahead, backing, end)
        return answer.data

    async def _prepare_ahead(self, backing: Backing, offset: int) -> None:
        assert backing.reader is not None
        try:
            # What cannot be prepared, a read that needs it tells of.
            with suppress(BrevisError, OSError, MemoryError):
                await trio.to_thread.run_sync(_prepare_ahead, backing.reader, offset, limiter=self._threads)
            await self._weigh(backing)
        finally:
            backing.preparing = False
            self.backings.release(backing)

    async def _weigh(self, backing: Backing) -> None:
        """Gives extents what the archives leave of the budget, which let go of programs if that is little."""
        self.backings.weigh(backing)
        most = self._most - self._least
        if self.backings.memory > most:
            await self.backings.drop_programs(most)
        self.front.limit(max(self._least, self._most - self.backings.memory))


def _read(backing: Backing, offset: int, end: int) -> npt.NDArray[np.uint8]:
    reader, file = backing.reader, backing.front_file
    assert reader is not None
    assert file is not None
    # Here, where only so many are at work: requests that wait for a thread take no memory.
    out = np.empty(end - offset, np.uint8)
    if reader.prepare(offset, end) < end or not file.read(offset, out):
        # It may be so large that its programs do not fit memory at one time; else this tells what is wrong.
        reader.read_into(offset, out)
    return out


def _prepare_ahead(reader: Reader, offset: int) -> None:
    """What comes after the offset, and after the end what comes first: many read here and there."""
    most = reader.memory + _PREPARED_MEMORY
    prepared = 0
    for _ in range(_PREPARED_SECTIONS):
        if prepared >= min(_PREPARED_AHEAD, reader.size) or reader.memory > most:
            return
        if offset >= reader.size:
            offset = 0
        stop = reader.section_at(offset).end
        if reader.prepare(offset, stop) < stop:
            return
        prepared += stop - offset
        offset = stop


def _tell(backing: Backing, offset: int, error: BrevisError | OSError) -> None:
    """Once for each damaged place and opening."""
    where = getattr(error, "begin", offset)
    if where not in backing.damaged:
        backing.damaged.add(where)
        log.error("%s: %s", backing.name, error)
