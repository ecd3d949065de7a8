"""Memory for decoded extents, used again and again.

The kernel takes longer to give fresh pages than a decoder to fill them. Each buffer is a mapping of its
own, so that what is let go of is the system's again at once.
"""

import mmap

_PAGE = mmap.PAGESIZE
_HUGE = 2 * 1024 * 1024
_SMALL = 256 * 1024


class Buffers:
    """`held` is the bytes of all buffers there are, `spare` of those that wait to be used again.

    At most `most_spare` bytes wait.
    """

    def __init__(self, most_spare: int) -> None:
        self.held = 0
        self.spare = 0
        self._most_spare = most_spare
        self._free: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes, whole pages; what it holds is undefined."""
        size = _whole_pages(size)
        free = self._free.get(size)
        if free:
            self.spare -= size
            return free.pop()
        self.held += size
        # A large one is left to the decoder to touch, because that takes long.
        populate = mmap.MAP_POPULATE if size <= _SMALL else 0
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
        if size >= _HUGE:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(mapped)

    def has(self, size: int) -> bool:
        """Whether `take` needs no more memory than there is."""
        return bool(self._free.get(_whole_pages(size)))

    def give(self, buffer: memoryview) -> None:
        """Takes a buffer back."""
        size = len(buffer)
        if self.spare + size > self._most_spare:
            self.held -= size
            return
        self.spare += size
        self._free.setdefault(size, []).append(buffer)

    def trim(self) -> None:
        """Lets go of all that waits."""
        self._free.clear()
        self.held -= self.spare
        self.spare = 0


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
