"""Decoded archives: file-aligned extents, least recently used, within a hard budget of bytes.

An extent is what one decode produces and what one thread works on: large enough that a thread's hand-over
is small beside it, small enough that a fault of one page does not decode much more than it needs, and that
a request of 1 MiB keeps two threads busy. A request takes at most three, and only so many requests that
need a decode run at once as the budget has room for; so an extent that is not in use can always be found,
and no request waits for memory while it holds some.
"""

import errno
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

import numpy as np
import trio
from pyfuse3 import FUSEError

from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing, Backings, Key
from brevisfs.fs._pool import DecodePool

log = logging.getLogger("brevisfs.fs")

EXTENT = 512 * 1024
LARGEST_REQUEST = 1024 * 1024
SMALLEST_BUDGET = 32 * 1024 * 1024

_EXTENTS_A_REQUEST = LARGEST_REQUEST // EXTENT + 1
# A decoding thread keeps the stored bytes of what it decodes beside the extent.
_THREAD_MEMORY = 2 * EXTENT
_MOST_REQUESTS = 32


@dataclass(slots=True, eq=False)
class _Extent:
    """`ready` is set once `buffer` is filled or `error` says why not. While `pins` > 0 it is in use."""

    buffer: memoryview
    ready: trio.Event
    pins: int = 0
    error: Exception | None = None


@dataclass(slots=True)
class Counters:
    """How reads of archives were served, in extents: decoded for one, found ready, or waited for
    while another read had them decoded; `failed` could not be decoded as a whole."""

    decoded: int = 0
    found: int = 0
    joined: int = 0
    failed: int = 0


class ExtentCache:
    """Answers reads of archives. Belongs to the event loop.

    `budget` bounds the bytes of extents, of the open archives' indexes and programs, and of what the
    `threads` decoding threads work on. Raises ValueError for a budget below SMALLEST_BUDGET.
    """

    def __init__(self, budget: int, threads: int, backings: Backings) -> None:
        if budget < SMALLEST_BUDGET:
            raise ValueError(f"a cache of {budget} bytes is below the least, {SMALLEST_BUDGET}")
        threads = min(threads, budget // (8 * _THREAD_MEMORY))
        half = budget // 2 - threads * _THREAD_MEMORY
        requests = min(_MOST_REQUESTS, half // (_EXTENTS_A_REQUEST * EXTENT))
        self.counters = Counters()
        self._backings = backings
        self._pool = DecodePool(threads)
        self._requests = trio.CapacityLimiter(requests)
        self._least = requests * _EXTENTS_A_REQUEST * EXTENT
        self._most = budget - threads * _THREAD_MEMORY
        self._extents: OrderedDict[tuple[Key, int], _Extent] = OrderedDict()
        self._salvaging = 0
        self._reply = bytearray(LARGEST_REQUEST)

    @property
    def held(self) -> int:
        """Bytes of decoded extents in memory."""
        return (len(self._extents) + self._salvaging) * EXTENT

    def close(self) -> None:
        """Waits for the decoding threads; blocks."""
        self._pool.close()

    async def read(self, backing: Backing, offset: int, size: int) -> memoryview:
        """All bytes of [offset, offset + size) that are before the file's end.

        The view is good until the calling task waits for anything; what it shows is overwritten then.
        Raises FUSEError EIO if a block that the range touches is damaged.
        """
        assert backing.reader is not None
        end = min(offset + size, backing.reader.size)
        if offset >= end:
            return memoryview(b"")
        if end - offset > LARGEST_REQUEST:
            parts = range(offset, end, LARGEST_REQUEST)
            return memoryview(
                b"".join(
                    [bytes(await self.read(backing, lo, min(LARGEST_REQUEST, end - lo))) for lo in parts]
                )
            )
        found = self._find(backing, offset, end)
        if found is not None:
            return self._assemble(found, offset, end)
        await self._requests.acquire()
        try:
            return await self._fetch(backing, offset, end)
        finally:
            self._requests.release()

    def _find(self, backing: Backing, offset: int, end: int) -> list[memoryview] | None:
        """The extents that [offset, end) touches, if all of them are ready."""
        keys = [(backing.key, index) for index in _indexes(offset, end)]
        found = []
        for key in keys:
            extent = self._extents.get(key)
            if extent is None or not extent.ready.is_set():
                return None
            found.append(extent.buffer)
        for key in keys:
            self._extents.move_to_end(key)
        self.counters.found += len(keys)
        return found

    async def _fetch(self, backing: Backing, offset: int, end: int) -> memoryview:
        wanted = [(index, self._pin(backing, index)) for index in _indexes(offset, end)]
        try:
            # All of them even if one fails: what is still decoded then would count for no request.
            for _, extent in wanted:
                await extent.ready.wait()
            whole = [
                extent.buffer
                if extent.error is None
                else await self._salvage(backing, index, extent.error, offset, end)
                for index, extent in wanted
            ]
            return self._assemble(whole, offset, end)
        finally:
            for _, extent in wanted:
                extent.pins -= 1

    def _assemble(self, extents: list[memoryview], offset: int, end: int) -> memoryview:
        """[offset, end) of the file, given the extents that it touches; a copy only if they are several."""
        skipped = offset % EXTENT
        if len(extents) == 1:
            return extents[0][skipped : skipped + end - offset]
        reply = memoryview(self._reply)[: end - offset]
        done = 0
        for extent in extents:
            part = extent[skipped : skipped + len(reply) - done]
            reply[done : done + len(part)] = part
            done += len(part)
            skipped = 0
        return reply

    def _pin(self, backing: Backing, index: int) -> _Extent:
        """The extent, in use; its decoding is under way if it is not ready."""
        key = (backing.key, index)
        extent = self._extents.get(key)
        if extent is None:
            extent = self._start(backing, index)
            self.counters.decoded += 1
        elif extent.ready.is_set():
            self._extents.move_to_end(key)
            self.counters.found += 1
        else:
            self.counters.joined += 1
        extent.pins += 1
        return extent

    def _start(self, backing: Backing, index: int) -> _Extent:
        reader = backing.reader
        assert reader is not None
        begin = index * EXTENT
        length = min(EXTENT, reader.size - begin)
        extent = self._extents[backing.key, index] = _Extent(self._buffer(), trio.Event(), pins=1)
        backing.users += 1
        work = partial(reader.read_into, begin, extent.buffer[:length])
        self._pool.submit(work, partial(self._decoded, backing, index, extent))
        return extent

    def _decoded(self, backing: Backing, index: int, extent: _Extent, error: Exception | None) -> None:
        extent.pins -= 1
        if error is not None:
            extent.error = error
            del self._extents[backing.key, index]
            self.counters.failed += 1
        self._backings.release(backing)
        extent.ready.set()

    async def _salvage(
        self, backing: Backing, index: int, error: Exception, offset: int, end: int
    ) -> memoryview:
        """An extent that failed as a whole, with only the part of it decoded that [offset, end) needs."""
        if not isinstance(error, BrevisError | OSError):
            raise error
        if index not in backing.damaged:
            backing.damaged.add(index)
            log.error("%s: %s", backing.name, error)
        reader = backing.reader
        assert reader is not None
        begin = index * EXTENT
        lo, hi = max(offset, begin), min(end, begin + EXTENT)
        extent = _new_buffer()
        self._salvaging += 1
        try:
            with self._backings.held(backing):
                await self._pool.run(partial(reader.read_into, lo, extent[lo - begin : hi - begin]))
        except (BrevisError, OSError):
            raise FUSEError(errno.EIO) from None
        finally:
            self._salvaging -= 1
        return extent

    def _buffer(self) -> memoryview:
        """Room for one extent, made by letting go of the oldest ones that are not in use."""
        room = max(self._least, self._most - self._index_memory())
        buffer = None
        while self.held + EXTENT > room:
            oldest = next((key for key, extent in self._extents.items() if extent.pins == 0), None)
            if oldest is None:
                break
            buffer = self._extents.pop(oldest).buffer
        return _new_buffer() if buffer is None else buffer

    def _index_memory(self) -> int:
        memory = self._backings.memory
        if memory > self._most - self._least:
            self._backings.drop_programs()
            memory = self._backings.memory
        return memory


def _new_buffer() -> memoryview:
    # Not a bytearray, which would touch all of it here, on the event loop, to set it to zero.
    return np.empty(EXTENT, np.uint8).data


def _indexes(offset: int, end: int) -> range:
    return range(offset // EXTENT, (end - 1) // EXTENT + 1)
