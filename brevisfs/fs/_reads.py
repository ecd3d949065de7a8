"""How reads are answered: by the front's threads, and here what those hand on.

The front (`brevisfs._native.front`) answers a read of a handle that it knows if nothing that it touches is
damaged. For any other read, pyfuse3 calls the handler: it reads once more, and says what is wrong if that
fails.
"""

import errno
import logging
import threading
from collections.abc import Callable

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

PROGRAMS = 2 * 1024 * 1024
"""Bytes of programs that a reader may keep to find out what is damaged. They are not in the budget, and
neither is what it takes to make one: so one finds out at a time."""

# What a thread holds to decode: the answer, stored bytes, and the parts of blocks before they are joined.
_THREAD_MEMORY = 3 * REQUEST


class Reads:
    """Answers reads of archives. Belongs to the event loop.

    `budget` bounds the bytes of decoded extents, of programs, of the open archives' indexes, and of what
    `threads` decoding threads work on. `open_reader` makes a reader of an archive's descriptor. Raises
    ValueError for a budget below SMALLEST_BUDGET.
    """

    def __init__(self, budget: int, threads: int, open_reader: Callable[[int], Reader]) -> None:
        if budget < SMALLEST_BUDGET:
            raise ValueError(f"a cache of {budget} bytes is below the least, {SMALLEST_BUDGET}")
        # One more receives, and decodes what is small.
        threads = min(threads, budget // (2 * _THREAD_MEMORY) - 1)
        budget -= (threads + 1) * _THREAD_MEMORY
        self.front = Front(threads, budget)
        self.backings = Backings(open_reader, self.front, budget)
        self._threads = trio.CapacityLimiter(threads)
        self._requests = 0
        self._finding_out = threading.Lock()

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
        answer = await trio.to_thread.run_sync(self._read, backing, offset, end, limiter=self._threads)
        if not isinstance(answer, np.ndarray):
            _tell(backing, offset, answer)
            raise FUSEError(errno.EIO)
        return answer.data

    def _read(self, backing: Backing, offset: int, end: int) -> npt.NDArray[np.uint8] | BrevisError | OSError:
        reader, file = backing.reader, backing.front_file
        assert reader is not None
        assert file is not None
        # Here, where only so many are at work: requests that wait for a thread take no memory.
        out = np.empty(end - offset, np.uint8)
        if file.read(offset, out):
            return out
        with self._finding_out:
            try:
                reader.read_into(offset, out)
            except (BrevisError, OSError) as error:
                return _bare(error)
            finally:
                reader.drop_programs()
        return out


def _bare(error: BrevisError | OSError) -> BrevisError | OSError:
    """Without the frames that it came through, some of which have a large prologue, and would keep it until
    the garbage collector finds them: that can be after dozens of reads."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _tell(backing: Backing, offset: int, error: BrevisError | OSError) -> None:
    """Once for each damaged place and opening."""
    where = getattr(error, "begin", offset)
    if where not in backing.damaged:
        backing.damaged.add(where)
        log.error("%s: %s", backing.name, error)
