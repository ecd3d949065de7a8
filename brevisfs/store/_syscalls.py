"""System calls that Python does not offer."""

import ctypes
import errno
import os
from contextlib import suppress

_libc = ctypes.CDLL(None, use_errno=True)
_NOREPLACE = 1
_EXCHANGE = 2


def move(old_folder: int, old: bytes, new_folder: int, new: bytes) -> None:
    """Renames a file to a name that must be free. Raises FileExistsError if it is not."""
    try:
        _rename(old_folder, old, new_folder, new, _NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
    else:
        return
    # A filesystem without that flag. Nobody else makes names in a store that we hold the lock of.
    with suppress(FileNotFoundError):
        os.stat(new, dir_fd=new_folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)


def exchange(one_folder: int, one: bytes, other_folder: int, other: bytes) -> None:
    """Exchanges two files at once. Raises OSError, EINVAL where the filesystem cannot."""
    _rename(one_folder, one, other_folder, other, _EXCHANGE)


def sync_filesystem(folder: int) -> None:
    """Waits until everything written to the filesystem of a folder is on disk."""
    descriptor = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        if _libc.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _rename(old_folder: int, old: bytes, new_folder: int, new: bytes, flags: int) -> None:
    if _libc.renameat2(old_folder, old, new_folder, new, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old, None, new)
