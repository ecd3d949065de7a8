"""Memory for decoded extents, used again and again.

The kernel takes longer to give fresh pages than a decoder to fill them, and longer for small pages than for
huge ones. So buffers of the usual block are cut from a huge page, and each is the system's again by itself;
every other buffer is a mapping of its own.
"""

import mmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# No memoryview: see the hazard in docs/design/architecture.md.
Bytes: TypeAlias = npt.NDArray[np.uint8]

PIECE = 128 * 1024
"""Bytes of a usual block."""

_PAGE = mmap.PAGESIZE
_HUGE = 2 * 1024 * 1024
# Up to this the kernel gives all pages at once; to wait for more would hold the event loop up.
_SMALL = 256 * 1024


class Buffers:
    """`held` is the bytes of all buffers, of which about `most_spare` at most wait to be used again."""

    def __init__(self, most_spare: int) -> None:
        self.held = 0
        self._most_spare = most_spare
        self._spare = 0
        self._free: dict[int, list[Bytes]] = {}
        # Of a buffer that was cut from a mapping, by its address, and where in it.
        self._cut_from: dict[int, tuple[mmap.mmap, int]] = {}

    def growth(self, size: int) -> int:
        """By how much `held` grows with the next `take`."""
        size = _rounded(size)
        if self._free.get(size):
            return 0
        return _HUGE if size == PIECE else size

    def take(self, size: int) -> Bytes:
        """A buffer of at least `size` bytes, whole pages; what it holds is undefined."""
        size = _rounded(size)
        free = self._free.get(size)
        if not free:
            if size != PIECE:
                self.held += size
                return np.frombuffer(_mapped(size), np.uint8)
            free = self._cut()
        self._spare -= size
        return free.pop()

    def give(self, buffer: Bytes) -> None:
        """Takes a buffer back."""
        size = len(buffer)
        if self._spare + size > self._most_spare:
            self._let_go(buffer)
            return
        self._spare += size
        self._free.setdefault(size, []).append(buffer)

    def trim(self) -> bool:
        """Lets go of all that waits to be used again; whether anything did."""
        trimmed = self._spare > 0
        for buffers in self._free.values():
            for buffer in buffers:
                self._let_go(buffer)
        self._free.clear()
        self._spare = 0
        return trimmed

    def _cut(self) -> list[Bytes]:
        """A huge page in pieces, which wait to be used."""
        mapped = _mapped(_HUGE)
        whole = np.frombuffer(mapped, np.uint8)
        free = self._free.setdefault(PIECE, [])
        for begin in range(0, _HUGE, PIECE):
            piece = whole[begin : begin + PIECE]
            self._cut_from[_address(piece)] = mapped, begin
            free.append(piece)
        self.held += _HUGE
        self._spare += _HUGE
        return free

    def _let_go(self, buffer: Bytes) -> None:
        self.held -= len(buffer)
        if len(buffer) == PIECE:
            mapped, begin = self._cut_from.pop(_address(buffer))
            mapped.madvise(mmap.MADV_DONTNEED, begin, PIECE)


def _mapped(size: int) -> mmap.mmap:
    populate = mmap.MAP_POPULATE if size <= _SMALL else 0
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
    if size >= _HUGE:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _address(buffer: Bytes) -> int:
    return int(buffer.__array_interface__["data"][0])


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
