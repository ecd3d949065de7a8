"""Output files that are either whole and on disk under their name, or not there at all.

Where the filesystem can, the file has no name until it is finished (O_TMPFILE, then linkat), so that
even a killed process leaves nothing. Elsewhere it has a reserved name, held under a lock while it is
written; one that nobody holds is a dead process's, and the next output in that folder removes it.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from brevisfs.errors import BrevisError, ExitCode

_PARTIAL = ".brevisfs-partial-"
_BUSY = "another process is writing this output"
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class OutputExists(BrevisError):
    """The output is there already and was not to be replaced."""

    exit_code = ExitCode.EXISTS


class OutputBusy(BrevisError):
    """Another process is writing the same output."""

    exit_code = ExitCode.BUSY


@contextmanager
def new_file(target: Path, *, replace: bool) -> Iterator[int]:
    """A descriptor, open for reading and writing, of what appears as `target` if the block ends well.

    Raises OutputExists, OutputBusy or OSError; `target` is then as it was.
    """
    if not replace:
        _refuse_existing(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_abandoned(folder)
        with _named_as(target):
            output = _Unfinished(folder, target)
        try:
            yield output.fd
            with _named_as(target):
                output.finish(replace)
        finally:
            output.close()
    finally:
        os.close(folder)


@contextmanager
def _named_as(target: Path) -> Iterator[None]:
    """Errors name the output, and not what stands for it until it is finished."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(target), None
        raise


class _Unfinished:
    """A file being written; `named` says whether it is in the folder under the name `partial`."""

    def __init__(self, folder: int, target: Path) -> None:
        self.folder = folder
        self.target = target
        self.partial = _PARTIAL + hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
        self.named = False
        try:
            self.fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
            _lock(self.fd)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            self.fd = _create_named(folder, self.partial)
            self.named = True

    def finish(self, replace: bool) -> None:
        os.fsync(self.fd)
        if self.named or replace:
            self._link_partial()
            if not replace:
                _refuse_existing(self.target)
            os.rename(self.partial, self.target.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self.named = False
        else:
            try:
                self._link(self.target.name)
            except FileExistsError:
                raise _exists(self.target) from None
        os.fsync(self.folder)

    def close(self) -> None:
        if self.named:
            os.unlink(self.partial, dir_fd=self.folder)
        os.close(self.fd)

    def _link_partial(self) -> None:
        if self.named:
            return
        try:
            self._link(self.partial)
        except FileExistsError:
            raise OutputBusy(_BUSY) from None
        self.named = True

    def _link(self, name: str) -> None:
        # With a descriptor for the first folder, Python calls linkat, which follows the /proc link.
        os.link(f"/proc/self/fd/{self.fd}", name, src_dir_fd=self.folder, dst_dir_fd=self.folder)


def copy_metadata(source: int, target: int) -> None:
    """Gives `target` the owner (where allowed), mode, times, ACLs and attributes of `source`."""
    status = os.fstat(source)
    with suppress(PermissionError):
        os.fchown(target, status.st_uid, status.st_gid)
    shutil.copystat(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}")


def _create_named(folder: int, partial: str) -> int:
    while True:
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        if not _lock(fd):
            os.close(fd)
            raise OutputBusy(_BUSY)
        if _is_named(fd, folder, partial):
            os.ftruncate(fd, 0)
            return fd
        # Between open and lock another process took it for abandoned and removed it.
        os.close(fd)


def _remove_abandoned(folder: int) -> None:
    for name in os.listdir(folder):
        if not name.startswith(_PARTIAL):
            continue
        with suppress(FileNotFoundError):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                if _lock(fd) and _is_named(fd, folder, name):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(fd: int, folder: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise _exists(target)


def _exists(target: Path) -> OutputExists:
    return OutputExists(f"{target} exists; --force replaces it")
