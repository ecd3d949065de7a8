"""One daemon a store: a lock in the store's private folder, held as long as the daemon lives."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from brevisfs.store._errors import StoreBusy
from brevisfs.store._names import PRIVATE_FOLDER

_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def take_lock(root: int, path: Path) -> int | None:
    """The descriptor that holds the lock of the store at `root`; None if the store cannot be written.

    Closing it gives the lock back. Raises StoreBusy if somebody else has it.
    """
    try:
        lock = _open_lock(root)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return None
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        by = f", by process {holder}" if holder else ""
        raise StoreBusy(f"{path} is already mounted or being changed{by}; end that first") from None
    with suppress(OSError):  # a full disk has no room to say who has the lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


@contextmanager
def kept_unmounted(folder: Path) -> Iterator[None]:
    """Keeps the stores that a folder lies in from being mounted, for the time of the block.

    Raises StoreBusy if one is mounted.
    """
    with ExitStack() as held:
        for place in (folder, *folder.absolute().parents):
            try:
                lock = os.open(place / os.fsdecode(PRIVATE_FOLDER) / "lock", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            held.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusy(
                    f"{folder} lies in the store {place}, which is mounted or being changed; use that mount, "
                    "or end it first"
                ) from None
        yield


def _open_lock(root: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(PRIVATE_FOLDER, 0o700, dir_fd=root)
    folder = os.open(PRIVATE_FOLDER, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    try:
        return os.open(b"lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
