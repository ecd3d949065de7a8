"""Reading and writing all of what is asked for, where a system call may do less."""

import os


def read_whole(file: int, size: int, offset: int) -> bytes:
    """`size` bytes at an offset of an open file, fewer only at its end. Raises OSError."""
    data = os.pread(file, size, offset)
    while 0 < len(data) < size:
        more = os.pread(file, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def write_whole(file: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all of `data` at an offset of an open file. Raises OSError, with a part written perhaps."""
    done = 0
    # No view outlives an error of the write: see the hazard in docs/design/architecture.md.
    with memoryview(data) as whole:
        while done < len(data):
            with whole[done:] as rest:
                done += os.pwrite(file, rest, offset + done)
