"""The front of a mount, which answers reads without the interpreter: see docs/design/mount.md."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from brevisfs._native import Index, _brevis, forced_cpu, scratch
from brevisfs._native._brevis import ffi, lib


def take_the_place_of_libfuse() -> None:
    """Have calls of libfuse, by what is loaded later, reach the front that serves, if there is one."""
    ctypes.CDLL(_brevis.__file__, os.RTLD_NOW | os.RTLD_GLOBAL)


class Front:
    """`threads` threads, and at most `limit` bytes of decoded extents and programs. Raises MemoryError.

    Every method may be called from any thread.
    """

    def __init__(self, threads: int, limit: int) -> None:
        front = lib.brv_front_new(threads, limit, forced_cpu())
        if not front:
            raise MemoryError("no memory, or no descriptors, for the threads that answer reads")
        self.handle = ffi.gc(front, lib.brv_front_free)

    def serve(self) -> None:
        """The session that pyfuse3 makes next is this front's, if its calls can be intercepted."""
        lib.brv_front_serve(self.handle)

    @property
    def is_attached(self) -> bool:
        """Whether there is such a session."""
        return bool(lib.brv_front_attached(self.handle))

    def limit(self, size: int) -> None:
        """Extents and programs have at most so many bytes of memory from now on, programs half of that."""
        lib.brv_front_limit(self.handle, size)

    def counters(self) -> dict[str, int]:
        """What brv_counters has."""
        counters = ffi.new("brv_counters *")
        lib.brv_front_count(self.handle, counters)
        return {name: int(getattr(counters, name)) for name, _ in ffi.typeof("brv_counters").fields}

    def answer(self, handle: int, file: FrontFile | None) -> None:
        """Reads of this handle of the mount are reads of the file; of None, they are not answered here."""
        wanted = ffi.NULL if file is None else file.handle
        if lib.brv_front_handle(self.handle, handle, wanted):
            raise MemoryError("no memory for a handle")

    def bare(self, inodes: Sequence[int], nanoseconds: int) -> None:
        """For so long these are known to have no extended attributes; for 0, no more."""
        lib.brv_front_bare(self.handle, inodes, len(inodes), nanoseconds)

    def is_bare(self, inode: int) -> bool:
        """Whether it is known."""
        return bool(lib.brv_front_is_bare(self.handle, inode))

    def end(self) -> None:
        """Waits for the threads: what was begun is answered. The next session is not this front's."""
        lib.brv_front_end(self.handle)
        lib.brv_front_serve(ffi.NULL)


class FrontFile:
    """A file that a front reads: the archive that has this index, or a plain file.

    What a front keeps of an archive it finds again by its `identity`, five numbers. Raises MemoryError.
    """

    def __init__(self, front: Front, identity: Sequence[int] = (0,) * 5, index: Index | None = None) -> None:
        self._front = front
        self._index = index
        numbers = [number & 0xFFFF_FFFF_FFFF_FFFF for number in identity]
        self.handle = lib.brv_file_new(front.handle, numbers, index.handle if index else ffi.NULL)
        if not self.handle:
            raise MemoryError("no memory for an open file")

    def open(self, file: int) -> None:
        """It is read from this descriptor, which stays the caller's, as long as it is not closed."""
        lib.brv_file_open(self.handle, file)

    def close(self, *, wait: bool = True) -> bool:
        """Waits for what is being read, or returns whether nothing is: the descriptor is not used any more.

        No handle may be answered from it. What is prepared stays for when it is opened again.
        """
        return bool(lib.brv_file_close(self.handle, wait))

    def free(self) -> None:
        """Lets go of all but decoded extents. It is closed, and not to be used any more."""
        lib.brv_file_free(self.handle)

    def read(self, offset: int, out: npt.NDArray[np.uint8]) -> bool:
        """Fills out with all bytes from `offset` on; False if they cannot be read."""
        view = ffi.from_buffer("uint8_t[]", out, require_writable=True)
        return not lib.brv_file_read(self.handle, offset, len(view), view, scratch())
