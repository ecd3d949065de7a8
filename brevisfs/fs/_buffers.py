"""Memory for decoded extents, used again and again.

The kernel takes longer to give fresh pages than a decoder to fill them, and far longer for small pages than
for huge ones. So buffers of a block's size are pieces of a slab of 2 MiB; each other buffer is a mapping of
its own. What is let go of is the system's again at once.
"""

import mmap

SLAB = 2 * 1024 * 1024
"""Bytes of a huge page."""

PIECE = 128 * 1024
"""Bytes of a usual block."""

_PAGE = mmap.PAGESIZE
_PIECES = SLAB // PIECE


class Buffers:
    """`held` is the bytes of all memory taken from the system.

    At most `most_spare` bytes of buffers that are no pieces wait to be used again.
    """

    def __init__(self, most_spare: int) -> None:
        self.held = 0
        self._most_spare = most_spare
        self._spare = 0
        self._free: dict[int, list[memoryview]] = {}

    def growth(self, size: int) -> int:
        """By how much `held` grows with the next `take`."""
        size = _rounded(size)
        if self._free.get(size):
            return 0
        return SLAB if size == PIECE else size

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes, whole pages; what it holds is undefined."""
        size = _rounded(size)
        self.held += self.growth(size)
        free = self._free.setdefault(size, [])
        if free:
            self._spare -= 0 if size == PIECE else size
        elif size == PIECE:
            slab = _mapped(SLAB)
            free.extend(slab[place : place + PIECE] for place in range(0, SLAB, PIECE))
        else:
            return _mapped(size)
        return free.pop()

    def give(self, buffer: memoryview) -> None:
        """Takes a buffer back."""
        size = len(buffer)
        if size != PIECE:
            if self._spare + size > self._most_spare:
                self.held -= size
                return
            self._spare += size
        self._free.setdefault(size, []).append(buffer)

    def trim(self) -> None:
        """Lets go of all that waits to be used again, but for pieces of slabs that are in use."""
        pieces = self._free.pop(PIECE, [])
        self._free.clear()
        self.held -= self._spare
        self._spare = 0
        free: dict[int, int] = {}
        for piece in pieces:
            free[id(piece.obj)] = free.get(id(piece.obj), 0) + 1
        kept = [piece for piece in pieces if free[id(piece.obj)] < _PIECES]
        self.held -= (len(pieces) - len(kept)) * PIECE
        self._free[PIECE] = kept


def _mapped(size: int) -> memoryview:
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= SLAB:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
