"""Changes of the names of a store, each with one step at which it happens.

`docs/design/writes.md` has the list of steps and why they are in this order. Every method blocks and
raises OSError. Who calls them excludes other changes of the same names.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from brevisfs.store._looks import Identity
from brevisfs.store._names import (
    ARCHIVE_SUFFIX,
    LONGEST_NAME,
    PENDING_SUFFIX,
    PRIVATE_FOLDER,
    candidates,
    is_reserved,
)
from brevisfs.store._private import Private, Temporary
from brevisfs.store._store import Entry, Kind, Store
from brevisfs.store._syscalls import exchange, move


class NeedsRaw(Exception):
    """An archive cannot have the name that it is to get; it can once it is raw.

    `second`: it is the second of the two files that were named, else the first.
    """

    def __init__(self, *, second: bool = False) -> None:
        super().__init__("an archive has to be unpacked to get that name")
        self.second = second


class SourceMoved(Exception):
    """The raw file is not, or not any more, the one that was packed."""


def check_name(name: bytes) -> None:
    """Raises EINVAL for a name that the mount cannot show or that only the store may have."""
    if is_reserved(name) or name == PRIVATE_FOLDER:
        raise OSError(errno.EINVAL, "names in .brv and .brv+, and .brevisfs, are the store's own", name)


class Changes:
    """What changes names in a store. `private` is the store's."""

    def __init__(self, store: Store, private: Private) -> None:
        self.store = store
        self.private = private

    def remove(self, folder: int, name: bytes) -> None:
        """unlink: losers go first, so that none of them is found in the winner's place."""
        entry = self.store.find(folder, name)
        self._put_losers_away(folder, entry)
        os.unlink(entry.file, dir_fd=folder)

    def rename(self, old_folder: int, old: bytes, new_folder: int, new: bytes, *, replace: bool) -> None:
        """rename within the store. Raises NeedsRaw if `old` is an archive and `new` cannot be one's name."""
        check_name(new)
        source = self.store.find(old_folder, old)
        target = self._find(new_folder, new)
        if target is not None and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        if source.kind is Kind.ARCHIVE and not self.can_be_archive(new_folder, new):
            raise NeedsRaw
        self._put_losers_away(old_folder, source)
        if target is None:
            suffix = b"" if source.kind is Kind.RAW else ARCHIVE_SUFFIX
            move(old_folder, source.file, new_folder, new + suffix)
            return
        _check_types(source, target)
        self._put_losers_away(new_folder, target)
        if source.kind is target.kind:
            os.rename(source.file, target.file, src_dir_fd=old_folder, dst_dir_fd=new_folder)
        elif target.kind is Kind.ARCHIVE:
            self._raw_over_archive(old_folder, source, new_folder, target)
        else:
            self._archive_over_raw(old_folder, source, new_folder, target)

    def _raw_over_archive(self, old_folder: int, source: Entry, new_folder: int, target: Entry) -> None:
        if stat.S_ISREG(source.status.st_mode):
            file = self.store.open(old_folder, source)
            try:
                os.fdatasync(file)
            finally:
                os.close(file)
        if target.file.endswith(PENDING_SUFFIX):
            # It would win over the raw file.
            plain = target.name + ARCHIVE_SUFFIX
            move(new_folder, target.file, new_folder, plain)
        else:
            plain = target.file
        move(old_folder, source.file, new_folder, target.name)
        sync_folder(new_folder)
        os.unlink(plain, dir_fd=new_folder)

    def _archive_over_raw(self, old_folder: int, source: Entry, new_folder: int, target: Entry) -> None:
        pending, name, plain = candidates(target.name)
        move(old_folder, source.file, new_folder, pending)
        sync_folder(new_folder)
        os.unlink(name, dir_fd=new_folder)
        move(new_folder, pending, new_folder, plain)

    def exchange(self, one_folder: int, one: bytes, other_folder: int, other: bytes) -> None:
        """Exchanges two files of the mount. Raises NeedsRaw if just one of them is an archive."""
        first = self.store.find(one_folder, one)
        second = self.store.find(other_folder, other)
        if first.kind is not second.kind:
            raise NeedsRaw(second=second.kind is Kind.ARCHIVE)
        self._put_losers_away(one_folder, first)
        self._put_losers_away(other_folder, second)
        exchange(one_folder, first.file, other_folder, second.file)

    def link(self, old_folder: int, old: bytes, new_folder: int, new: bytes) -> Entry:
        """Another name for a file. Raises NeedsRaw as `rename` does."""
        check_name(new)
        source = self.store.find(old_folder, old)
        if self._find(new_folder, new) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        suffix = b""
        if source.kind is Kind.ARCHIVE:
            if not self.can_be_archive(new_folder, new):
                raise NeedsRaw
            suffix = ARCHIVE_SUFFIX
        os.link(
            source.file,
            new + suffix,
            src_dir_fd=old_folder,
            dst_dir_fd=new_folder,
            follow_symlinks=False,
        )
        return self.store.find(new_folder, new)

    def check_free(self, folder: int, name: bytes) -> None:
        """Raises EEXIST if the mount has something of this name, EINVAL if it must not have."""
        check_name(name)
        if self._find(folder, name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)

    def publish(self, folder: int, name: bytes, archive: Temporary, source: Identity) -> Entry:
        """The archive takes the place of the raw file that it was made from.

        The archive has the file's metadata and is on disk. Raises SourceMoved if the raw file is not in the
        state `source`, or has another link; FileExistsError if the archive's name is taken.
        """
        file = name + ARCHIVE_SUFFIX
        self._check_source(folder, name, source)
        with same_times(folder):
            move(self.private.temporaries, archive.name, folder, file)
            try:
                sync_folder(folder)
                self._check_source(folder, name, source)
                os.unlink(name, dir_fd=folder)
            except BaseException:
                os.unlink(file, dir_fd=folder)
                raise
        return self.store.find(folder, name)

    def _check_source(self, folder: int, name: bytes, source: Identity) -> None:
        try:
            entry = self.store.find(folder, name)
        except FileNotFoundError:
            raise SourceMoved(name) from None
        if entry.kind is not Kind.RAW or entry.identity != source or entry.status.st_nlink != 1:
            raise SourceMoved(name)

    def unpack(self, folder: int, entry: Entry, plain: Temporary) -> Entry:
        """A raw file takes the place of an archive; it has the archive's metadata and is on disk."""
        self._put_losers_away(folder, entry)
        with same_times(folder):
            move(self.private.temporaries, plain.name, folder, entry.name)
            sync_folder(folder)
            os.unlink(entry.file, dir_fd=folder)
        return self.store.find(folder, entry.name)

    def can_be_archive(self, folder: int, name: bytes) -> bool:
        """Whether an archive can be called so: the suffixes fit, and no other file has these names."""
        if len(name) > LONGEST_NAME:
            return False
        suffixed = (name + PENDING_SUFFIX, name + ARCHIVE_SUFFIX)
        return not any(self.store.is_plain(folder, file) for file in suffixed)

    def _find(self, folder: int, name: bytes) -> Entry | None:
        try:
            return self.store.find(folder, name)
        except FileNotFoundError:
            return None

    def _put_losers_away(self, folder: int, entry: Entry) -> None:
        for file in self.store.losers(folder, entry):
            self.private.put_away(folder, file)


def sync_folder(folder: int) -> None:
    """Waits until the names in a folder are on disk."""
    descriptor = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def same_times(folder: int) -> Iterator[None]:
    """Puts the folder's times back: what happens in the block changes nothing that the mount shows."""
    before = os.stat(b".", dir_fd=folder)
    try:
        yield
    finally:
        with suppress(PermissionError):  # somebody else's folder
            os.utime(b".", ns=(before.st_atime_ns, before.st_mtime_ns), dir_fd=folder)


def _check_types(source: Entry, target: Entry) -> None:
    if target.is_folder and not source.is_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target.name)
    if source.is_folder and not target.is_folder:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target.name)
