"""Whether packing a file is worth a try, can be done, was worth it, and was done right."""

import os
from collections.abc import Callable

from brevisfs import archive
from brevisfs.errors import BrevisError, ExitCode
from brevisfs.store import read_whole

_SMALLEST = 10  # length, and {}
_LONGEST_HEADER = 100_000_000
# The least share of a file that packing must save.
_LEAST_SAVED = 0.02
# Free space that packing leaves alone.
_SPARED = 64 << 20


class NoRoom(BrevisError):
    """There is not enough free space in the store."""

    exit_code = ExitCode.NO_SPACE


def check_room(store: int, size: int) -> None:
    """Raises NoRoom unless another file of `size` bytes has room, and some to spare, in an open folder."""
    there = os.statvfs(store)
    free = there.f_bavail * there.f_frsize
    if free < size + _SPARED:
        raise NoRoom(f"it needs {size + _SPARED} bytes of free space, and there are {free}")


def too_little(size: int, stored: int) -> str | None:
    """Why an archive of `stored` bytes is not worth having instead of a file; None if it is."""
    if stored <= size * (1 - _LEAST_SAVED):
        return None
    return f"packing it would save {size - stored} of {size} bytes"


def looks_like_model(file: int) -> bool:
    """Whether an open file starts as safetensors do. Reads nine bytes; most other files are told by them."""
    begin = os.pread(file, 9, 0)
    header = int.from_bytes(begin[:8], "little")
    return (
        begin[8:] == b"{"
        and header <= _LONGEST_HEADER
        and max(8 + header, _SMALLEST) <= os.fstat(file).st_size
    )


def same_as(source: int, packed: int, jobs: int, progress: Callable[[int, int], None] | None = None) -> bool:
    """Decodes all of an open archive, by `jobs` threads, and compares it with an open file.

    Raises ArchiveError if it does not decode.
    """
    reader = archive.Reader(packed)
    if reader.size != os.fstat(source).st_size:
        return False
    for offset, data in archive.decoded(reader, jobs):
        if data.tobytes() != read_whole(source, len(data), offset):
            return False
        if progress is not None:
            progress(offset + len(data), reader.size)
    return True
