"""Memory for decoded extents, used again and again.

The kernel takes longer to give fresh pages than a decoder to fill them, and longer for small pages than for
huge ones. Each buffer is a mapping of its own, so that what is let go of is the system's again at once.
"""

import mmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# No memoryview: see the hazard in docs/design/architecture.md.
Bytes: TypeAlias = npt.NDArray[np.uint8]

_PAGE = mmap.PAGESIZE
_HUGE = 2 * 1024 * 1024
# Up to this the kernel gives all pages at once; to wait for more would hold the event loop up.
_SMALL = 256 * 1024


class Buffers:
    """`held` is the bytes of all buffers, of which at most `most_spare` wait to be used again."""

    def __init__(self, most_spare: int) -> None:
        self.held = 0
        self._most_spare = most_spare
        self._spare = 0
        self._free: dict[int, list[Bytes]] = {}

    def growth(self, size: int) -> int:
        """By how much `held` grows with the next `take`."""
        size = _rounded(size)
        return 0 if self._free.get(size) else size

    def take(self, size: int) -> Bytes:
        """A buffer of at least `size` bytes, whole pages; what it holds is undefined."""
        size = _rounded(size)
        free = self._free.get(size)
        if free:
            self._spare -= size
            return free.pop()
        self.held += size
        populate = mmap.MAP_POPULATE if size <= _SMALL else 0
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
        if size >= _HUGE:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Takes a buffer back."""
        size = len(buffer)
        if self._spare + size > self._most_spare:
            self.held -= size
            return
        self._spare += size
        self._free.setdefault(size, []).append(buffer)

    def trim(self) -> bool:
        """Lets go of all that waits to be used again; whether anything did."""
        trimmed = self._spare > 0
        self._free.clear()
        self.held -= self._spare
        self._spare = 0
        return trimmed


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
