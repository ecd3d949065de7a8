"""Whether a file is worth a try, and whether an archive is the file."""

import os
from collections.abc import Callable

from brevisfs import archive

_SMALLEST = 10  # length, and {}
_LONGEST_HEADER = 100_000_000


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
        if data.tobytes() != _read(source, len(data), offset):
            return False
        if progress is not None:
            progress(offset + len(data), reader.size)
    return True


def _read(file: int, size: int, offset: int) -> bytes:
    data = os.pread(file, size, offset)
    while 0 < len(data) < size:
        more = os.pread(file, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
