"""Decoded archives: ranges of the plain file, least recently used, within a hard budget of bytes.

An *extent* is what one decode produces. One that a request waits for is the blocks that it touches and no
more; one that is decoded ahead of a reader is a *window* of 2 MiB. A large extent that was asked for in
full is in the kernel's page cache, and its memory is used for what comes next: that memory is warm, and the
cache keeps what the kernel may ask for again.

The budget has three parts: half of it, at least, for requests that wait (only so many run at once that each
finds room for what it touches), a quarter for windows, and what the decoding threads work on. So what is in
use never fills it, and no request waits for memory while it holds some.
"""

import errno
import logging
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import trio
from pyfuse3 import FUSEError

from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing, Backings, Key, Reader
from brevisfs.fs._buffers import PIECE, Buffers, Bytes
from brevisfs.fs._pool import DecodePool, Job
from brevisfs.fs._readahead import REQUEST, WINDOW, Stream, Streams

log = logging.getLogger("brevisfs.fs")

SMALLEST_BUDGET = 32 * 1024 * 1024

_MOST_AHEAD = 8 * 1024 * 1024
_MOST_REQUESTS = 32
_LARGE = 512 * 1024
# A request up to this that touches no more blocks than this need not wait for threads.
_SMALL, _AT_ONCE = 64 * 1024, 2
# The stored bytes of a window and of a request, and what else two threads need to decode them.
_THREADS_MEMORY = 2 * (WINDOW + REQUEST)
# A request begins and ends within blocks.
_REQUEST_MEMORY = REQUEST + 2 * PIECE


@dataclass(slots=True, eq=False)
class _Extent:
    """[begin, end) of a file. `ready` is set once `buffer` is filled or `error` says why not.

    `unasked` of its bytes were not asked for yet. While `pins` > 0 it is in use. A window is one of a
    `stream`. What is not decoded at once is decoded by a `job`.
    """

    key: Key
    begin: int
    end: int
    buffer: Bytes
    ready: trio.Event
    unasked: int
    pins: int = 0
    error: Exception | None = None
    stream: Stream | None = None
    job: Job | None = None


@dataclass(slots=True)
class _File:
    """The extents of one file, in order and without overlap; `begins` are theirs."""

    begins: list[int] = field(default_factory=list)
    extents: list[_Extent] = field(default_factory=list)

    def after(self, offset: int) -> int:
        """The place of the first extent that ends after `offset`."""
        place = bisect_right(self.begins, offset)
        return place - 1 if place and self.extents[place - 1].end > offset else place


@dataclass(slots=True)
class Counters:
    """How reads of archives were served. `requests` reached the daemon; of the extents they touched some
    were `decoded` for one, `found` ready, or `joined` while another request or read-ahead had them decoded;
    `failed` could not be decoded as a whole. `ahead` were decoded before any request wanted them."""

    requests: int = 0
    decoded: int = 0
    found: int = 0
    joined: int = 0
    failed: int = 0
    ahead: int = 0


class ExtentCache:
    """Answers reads of archives. Belongs to the event loop.

    `budget` bounds the bytes of extents, of the open archives' indexes and programs, and of what the
    `threads` decoding threads work on. Raises ValueError for a budget below SMALLEST_BUDGET.
    """

    def __init__(self, budget: int, threads: int, backings: Backings) -> None:
        if budget < SMALLEST_BUDGET:
            raise ValueError(f"a cache of {budget} bytes is below the least, {SMALLEST_BUDGET}")
        threads = min(threads, budget // (4 * _THREADS_MEMORY))
        self._most = budget - threads * _THREADS_MEMORY
        self._most_ahead = budget // 4
        requests = min(_MOST_REQUESTS, (self._most - self._most_ahead) // 2 // _REQUEST_MEMORY)
        self._least = requests * _REQUEST_MEMORY + self._most_ahead
        self.counters = Counters()
        self._backings = backings
        self._pool = DecodePool(threads)
        self._requests = trio.CapacityLimiter(requests)
        self._buffers = Buffers(self._most_ahead)
        self._files: dict[Key, _File] = {}
        self._oldest: OrderedDict[_Extent, None] = OrderedDict()
        self._streams = Streams()
        self._windows: dict[Stream, list[_Extent]] = {}
        self._ahead = 0
        self._salvaging = 0
        self._reply = np.empty(REQUEST, np.uint8)
        self._done = trio.Event()
        self._done.set()

    @property
    def held(self) -> int:
        """Bytes of decoded extents in memory."""
        return self._buffers.held + self._salvaging

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
        if end - offset > REQUEST:
            parts = range(offset, end, REQUEST)
            return memoryview(
                b"".join([bytes(await self.read(backing, lo, min(REQUEST, end - lo))) for lo in parts])
            )
        self.counters.requests += 1
        self._pool.settle()
        found = self._find(backing, offset, end)
        if found is None:
            # Nothing gives the event loop a turn that need not wait.
            try:
                self._requests.acquire_nowait()
            except trio.WouldBlock:
                await self._requests.acquire()
            try:
                return await self._fetch(backing, offset, end)
            finally:
                self._requests.release()
        self._read_ahead(backing, offset, end)
        for extent in found:
            self._unpin(extent)
        return self._assemble([(extent.begin, extent.buffer) for extent in found], offset, end)

    def _find(self, backing: Backing, offset: int, end: int) -> list[_Extent] | None:
        """The extents that [offset, end) touches, in use, if all are ready or can be decoded at once."""
        found: list[_Extent] = []
        decoded = self.counters.decoded
        may_decode = _AT_ONCE if end - offset <= _SMALL and self._requests.available_tokens else 0
        done = offset
        try:
            while done < end:
                extent = self._at(backing.key, done)
                if extent is None and len(found) < may_decode:
                    extent = self._decode_at_once(backing, done)
                if extent is None or not extent.ready.is_set():
                    return None
                extent.pins += 1
                found.append(extent)
                done = extent.end
        finally:
            if done < end:
                for extent in found:
                    extent.pins -= 1
        for extent in found:
            self._touch(extent, offset, end)
        self.counters.found += len(found) - (self.counters.decoded - decoded)
        return found

    def _at(self, key: Key, offset: int) -> _Extent | None:
        """The extent that has the byte at `offset`."""
        file = self._files.get(key)
        if file is not None:
            place = bisect_right(file.begins, offset)
            if place and file.extents[place - 1].end > offset:
                return file.extents[place - 1]
        return None

    def _decode_at_once(self, backing: Backing, offset: int) -> _Extent | None:
        """The block around a byte that no extent has, decoded here if it is small and waits for no disk.

        That takes a fraction of what handing it to a thread does. Damage is left for a thread to tell.
        """
        reader = backing.reader
        assert reader is not None
        begin, end = _blocks(reader, offset, offset + 1)
        if end - begin > PIECE or not self._is_free(backing.key, begin, end):
            return None
        self._make_room(end - begin)
        buffer = self._buffers.take(end - begin)
        try:
            done = reader.read_at_once(begin, buffer[: end - begin])
        except (BrevisError, OSError):
            done = False
        self._weigh(backing)
        if not done:
            self._buffers.give(buffer)
            return None
        extent = _Extent(backing.key, begin, end, buffer, self._done, end - begin)
        self._add(extent)
        self.counters.decoded += 1
        return extent

    def _is_free(self, key: Key, begin: int, end: int) -> bool:
        """Whether nothing of [begin, end) is in an extent."""
        file = self._files.get(key)
        if file is None:
            return True
        place = file.after(begin)
        return place == len(file.begins) or file.begins[place] >= end

    async def _fetch(self, backing: Backing, offset: int, end: int) -> memoryview:
        wanted = self._pin(backing, offset, end)
        self._read_ahead(backing, offset, end)
        try:
            # All of them even if one fails: what is still decoded then would count for no request.
            for extent in wanted:
                if not extent.ready.is_set():
                    assert extent.job is not None
                    self._pool.want(extent.job)
                    await extent.ready.wait()
            whole = [
                (extent.begin, extent.buffer)
                if extent.error is None
                else await self._salvage(backing, extent, max(offset, extent.begin), min(end, extent.end))
                for extent in wanted
            ]
            return self._assemble(whole, offset, end)
        finally:
            for extent in wanted:
                self._unpin(extent)

    def _assemble(self, parts: list[tuple[int, Bytes]], offset: int, end: int) -> memoryview:
        """[offset, end) of the file from what covers it, as (begin, bytes); a copy only of several."""
        if len(parts) == 1:
            begin, buffer = parts[0]
            return buffer[offset - begin : end - begin].data
        reply = self._reply[: end - offset]
        ends = [begin for begin, _ in parts[1:]] + [end]
        for (begin, buffer), stop in zip(parts, ends, strict=True):
            lo = max(offset, begin)
            reply[lo - offset : stop - offset] = buffer[lo - begin : stop - begin]
        return reply.data

    def _pin(self, backing: Backing, offset: int, end: int) -> list[_Extent]:
        """The extents that [offset, end) touches, in use; those that are not ready are being decoded."""
        assert backing.reader is not None
        file = self._files.setdefault(backing.key, _File())
        wanted: list[_Extent] = []
        done = offset
        while done < end:
            place = file.after(done)
            if place < len(file.extents) and file.begins[place] <= done:
                extent = file.extents[place]
                if extent.ready.is_set():
                    self.counters.found += 1
                else:
                    self.counters.joined += 1
                self._touch(extent, offset, end)
            else:
                lowest = file.extents[place - 1].end if place else 0
                highest = file.begins[place] if place < len(file.begins) else backing.reader.size
                begin, stop = _blocks(backing.reader, done, min(end, highest))
                extent = self._start(backing, max(lowest, begin), min(highest, stop))
                self._touch(extent, offset, end)
            extent.pins += 1
            wanted.append(extent)
            done = extent.end
        return wanted

    def _unpin(self, extent: _Extent) -> None:
        extent.pins -= 1
        if extent.error is None:
            self._let_go(extent)
        elif not extent.pins:
            self._buffers.give(extent.buffer)

    def _let_go(self, extent: _Extent) -> None:
        """Gives the memory of a large extent back that has been asked for in full."""
        if extent.end - extent.begin >= _LARGE and extent.unasked <= 0 and not extent.pins:
            self._remove(extent)
            self._buffers.give(extent.buffer)

    def _touch(self, extent: _Extent, begin: int, end: int) -> None:
        """[begin, end) was asked for, which the extent has some of."""
        extent.unasked -= min(end, extent.end) - max(begin, extent.begin)
        if extent.stream is None:
            self._oldest.move_to_end(extent)

    def _start(self, backing: Backing, begin: int, end: int, stream: Stream | None = None) -> _Extent:
        """Has an extent decoded, as a window of `stream` if there is one."""
        reader = backing.reader
        assert reader is not None
        # Few sizes, so that their memory is used again.
        size = WINDOW if stream is not None else end - begin
        if size > PIECE:
            size = -(-size // PIECE) * PIECE
        self._make_room(size)
        buffer = self._buffers.take(size)
        extent = _Extent(backing.key, begin, end, buffer, trio.Event(), end - begin, pins=1, stream=stream)
        self._add(extent)
        if stream is not None:
            self.counters.ahead += 1
        else:
            self.counters.decoded += 1
        backing.users += 1
        work = partial(reader.read_into, begin, extent.buffer[: end - begin])
        done = partial(self._decoded, backing, extent)
        ahead = stream is not None
        read = reader.read_job(begin, extent.buffer[: end - begin]) if ahead else None
        extent.job = self._pool.submit(work, done, ahead=ahead, read=read)
        return extent

    def _decoded(self, backing: Backing, extent: _Extent, error: Exception | None) -> None:
        # It holds the reader, and with it index and programs, which the extent may outlive by far.
        extent.job = None
        if error is not None:
            extent.error = error
            self._remove(extent)
            self.counters.failed += 1
        self._unpin(extent)
        self._weigh(backing)
        self._backings.release(backing)
        extent.ready.set()

    def _add(self, extent: _Extent) -> None:
        file = self._files.setdefault(extent.key, _File())
        place = bisect_right(file.begins, extent.begin)
        file.begins.insert(place, extent.begin)
        file.extents.insert(place, extent)
        if extent.stream is not None:
            self._windows[extent.stream].append(extent)
            self._ahead += WINDOW
        else:
            self._oldest[extent] = None

    def _remove(self, extent: _Extent) -> None:
        """Takes an extent out of its file. Its buffer is the caller's to give back."""
        if extent.stream is not None:
            self._windows[extent.stream].remove(extent)
            self._ahead -= WINDOW
        else:
            del self._oldest[extent]
        file = self._files[extent.key]
        place = bisect_right(file.begins, extent.begin) - 1
        del file.begins[place], file.extents[place]
        if not file.begins:
            del self._files[extent.key]

    def _read_ahead(self, backing: Backing, offset: int, end: int) -> None:
        """Has decoded what the reader of [offset, end) will want next, and lets go of what it has passed."""
        reader = backing.reader
        assert reader is not None
        stream = self._streams.follow(backing.key, offset, end, reader.section_at)
        self._windows.setdefault(stream, [])
        target = min(stream.target(_MOST_AHEAD), reader.size)
        while stream.ahead < target:
            file = self._files.setdefault(backing.key, _File())
            place = file.after(stream.ahead)
            highest = file.begins[place] if place < len(file.begins) else reader.size
            if highest <= stream.ahead:
                stream.ahead = file.extents[place].end
                continue
            # Windows end where requests do, so that few requests have to be put together from two.
            length = min(WINDOW - (stream.ahead - stream.next) % REQUEST, highest - stream.ahead)
            if not self._room_ahead():
                break
            self._start(backing, stream.ahead, stream.ahead + length, stream)
            stream.ahead += length
        surplus = self._streams.surplus()
        if surplus is not None:
            self._forget(surplus)

    def _room_ahead(self) -> bool:
        """Whether one more window may be decoded; streams that have stopped make room."""
        while self._ahead + WINDOW > self._most_ahead:
            stopped = next((stream for stream in self._streams.idle() if self._windows[stream]), None)
            if stopped is None:
                return False
            self._forget(stopped)
        return True

    def _forget(self, stream: Stream) -> None:
        """Lets go of a stream; what is decoded ahead for it goes like any other extent."""
        self._streams.forget(stream)
        for window in self._windows.pop(stream):
            window.stream = None
            self._ahead -= WINDOW
            self._oldest[window] = None

    async def _salvage(self, backing: Backing, extent: _Extent, begin: int, end: int) -> tuple[int, Bytes]:
        """[begin, end) of an extent that failed as a whole, decoded alone."""
        error = extent.error
        if not isinstance(error, BrevisError | OSError):
            assert error is not None
            raise error
        where = getattr(error, "begin", extent.begin)
        if where not in backing.damaged:
            backing.damaged.add(where)
            log.error("%s: %s", backing.name, error)
        reader = backing.reader
        assert reader is not None
        part = np.empty(end - begin, np.uint8)
        self._salvaging += len(part)
        try:
            with self._backings.held(backing):
                await self._pool.run(partial(reader.read_into, begin, part))
        except (BrevisError, OSError):
            raise FUSEError(errno.EIO) from None
        finally:
            self._salvaging -= len(part)
        return begin, part

    def _make_room(self, size: int) -> None:
        """Lets go of the oldest extents that are not in use, until there is room for one of `size` bytes."""
        room = max(self._least, self._most - self._backings.memory)
        while self.held + self._buffers.growth(size) > room:
            if self._buffers.trim():
                continue
            oldest = next((extent for extent in self._oldest if not extent.pins), None)
            if oldest is None:
                break
            self._remove(oldest)
            self._buffers.give(oldest.buffer)

    def _weigh(self, backing: Backing) -> None:
        """Has programs let go of if, with those that reading the backing has prepared, they take too much."""
        self._backings.weigh(backing)
        if self._backings.memory > self._most - self._least:
            self._backings.drop_programs()


def _blocks(reader: Reader, begin: int, end: int) -> tuple[int, int]:
    """The range to decode for [begin, end): the blocks that it touches, or parts of very large ones."""
    first = reader.section_at(begin)
    last = first if end <= first.end else reader.section_at(end - 1)
    if max(first.block_size, last.block_size) > PIECE:
        return begin // PIECE * PIECE, -(-end // PIECE) * PIECE
    begin -= (begin - first.offset) % first.block_size
    return begin, min(last.end, end + (last.offset - end) % last.block_size)
