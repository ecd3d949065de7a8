"""Access to a store's folders and files that follows no symlink and never leaves the store's filesystem.

Every access starts at the descriptor of the store's own folder and goes down one name at a time, each
folder checked to be the one that was meant, so that a store whose folders are moved or replaced while it
is served can at worst answer ESTALE.
"""

import errno
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from brevisfs.archive import ArchiveError, NotArchive, original_length
from brevisfs.store._errors import StoreNotFound
from brevisfs.store._names import PRIVATE_FOLDER, candidates, is_reserved, ranked, shown_as
from brevisfs.store._syscalls import mount_of

_HEADS_KEPT = 16384
_TICK = 100_000_000
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking, so that a pipe put in the place of a file cannot hold the daemon up.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Kind(Enum):
    """How the bytes of a file of the mount are kept."""

    RAW = "raw"
    ARCHIVE = "archive"

    # That of Enum is written in Python, and every key in the daemon's tables has a kind in it.
    __hash__ = object.__hash__


class Identity(NamedTuple):
    """What tells one state of one backing file from another."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Step(NamedTuple):
    """One folder on the way down: its name, and which folder it must be."""

    name: bytes
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a folder of the mount has under one name.

    `file` is the name in the store, `size` the length of the plain file, `status` that of the backing file,
    which is `bare` if it is known to have no extended attributes.
    """

    name: bytes
    file: bytes
    kind: Kind
    size: int
    status: os.stat_result
    bare: bool = False
    identity: Identity = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", Identity.of(self.status))

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Store:
    """A backing folder. Its methods block; they may be called from several threads.

    Raises StoreNotFound if `path` is no folder. A method raises OSError as the system calls do.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        try:
            self.root = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StoreNotFound(f"{path}: there is no such store; name an existing folder") from None
        except OSError as error:
            raise StoreNotFound(f"{path} cannot serve as a store: {error.strerror}") from None
        self._device = os.fstat(self.root).st_dev
        self._mount = mount_of(self.root, b"")
        self._heads = _Heads()
        self._surveys = _Surveys()

    def close(self) -> None:
        os.close(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def folder(self, trail: Sequence[Step]) -> Iterator[int]:
        """A descriptor, for the time of the block, of the folder that `trail` leads to from the root.

        Raises ESTALE if a folder on the way is not there, or is not the one that the trail names.
        """
        descriptor = self._descend([step.name for step in trail], trail)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def folder_at(self, names: Sequence[bytes]) -> Iterator[int]:
        """As `folder`, by names alone."""
        descriptor = self._descend(names, None)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _descend(self, names: Sequence[bytes], trail: Sequence[Step] | None) -> int:
        here = os.dup(self.root)
        try:
            for depth, name in enumerate(names):
                below = os.open(name, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
                status = os.fstat(here)
                expected = (self._device, status.st_ino) if trail is None else trail[depth][1:]
                if (status.st_dev, status.st_ino) != expected:
                    raise OSError(errno.ESTALE, "the folder was replaced", name)
        except (FileNotFoundError, NotADirectoryError) as error:
            os.close(here)
            raise OSError(errno.ESTALE, "the folder is gone", error.filename) from None
        except OSError:
            os.close(here)
            raise
        return here

    def find(self, folder: int, name: bytes) -> Entry:
        """What a folder of the mount has under `name`; FileNotFoundError if nothing."""
        if name != PRIVATE_FOLDER:
            for file in candidates(name):
                status = self._status(folder, file)
                if status is None:
                    continue
                entry = self._look_at(folder, file, status)
                if entry.name == name:
                    return entry
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def entries(self, folder: int) -> list[Entry]:
        """Everything a folder of the mount has."""
        return [entry for entry, _ in self.survey(folder)]

    def survey(self, folder: int) -> list[tuple[Entry, list[Entry]]]:
        """Everything a folder of the mount has, each with the losers of its name."""
        listing = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            files = [os.fsencode(file) for file in os.listdir(listing)]
        finally:
            os.close(listing)
        place = os.fstat(folder).st_ino
        known = self._surveys.of(place)
        seen: dict[bytes, Entry] = {}
        for file in files:
            status = self._status(folder, file)
            if status is not None:
                entry = known.get(file)
                if entry is None or not _same_state(entry.status, status):
                    entry = self._look_at(folder, file, status)
                seen[file] = entry
        # What changes again in the same tick of the clock does not show it.
        past = time.time_ns() - _TICK
        self._surveys.keep(place, {file: e for file, e in seen.items() if e.status.st_ctime_ns < past})
        shown = ranked((file, entry.kind is Kind.ARCHIVE) for file, entry in seen.items())
        return [
            (seen[winner], [seen[loser] for loser in losers])
            for name, (winner, *losers) in shown.items()
            if name != PRIVATE_FOLDER
        ]

    def _look_at(self, folder: int, file: bytes, status: os.stat_result) -> Entry:
        """A file by itself, whatever else may stand for its name."""
        length, bare = self._look_inside(folder, file, status)
        if bare is None:
            bare = _is_bare(folder, file, status)
        return _entry(shown_as(file, length is not None), file, length, status, bare)

    def losers(self, folder: int, entry: Entry) -> list[bytes]:
        """The files that would stand for the entry's name if its own were not there."""
        return [
            file
            for file in candidates(entry.name)
            if file != entry.file and self._shows_as(folder, file) == entry.name
        ]

    def is_plain(self, folder: int, file: bytes) -> bool:
        """Whether there is a file of this name that is shown under it."""
        return self._shows_as(folder, file) == file

    def open(self, folder: int, entry: Entry, access: int = os.O_RDONLY) -> int:
        """A descriptor of the entry's backing file; ESTALE if another file has taken its place.

        `access` is O_RDONLY, O_WRONLY, O_RDWR or O_PATH.
        """
        file = os.open(entry.file, _FILE | access, dir_fd=folder)
        if not os.path.samestat(os.fstat(file), entry.status):
            os.close(file)
            raise OSError(errno.ESTALE, "the file was replaced", entry.file)
        return file

    def describe(self, path: str, kind: Kind) -> Entry:
        """The entry of a file that has no name any more, but a path through a descriptor of it."""
        status = os.stat(path)
        length = None
        if kind is Kind.ARCHIVE:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                length = _read_length(file)
            finally:
                os.close(file)
        return _entry(b"", b"", length, status, False)

    def _shows_as(self, folder: int, file: bytes) -> bytes | None:
        """The name in the mount of a file, None if there is no such file."""
        status = self._status(folder, file)
        if status is None:
            return None
        return shown_as(file, self._original_length(folder, file, status) is not None)

    def _status(self, folder: int, file: bytes) -> os.stat_result | None:
        """None for what is not there and for what is mounted there."""
        try:
            status = os.stat(file, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                return None
            raise
        if status.st_dev == self._device or self._is_of_a_layer(folder, file, status):
            return status
        return None

    def _is_of_a_layer(self, folder: int, file: bytes, status: os.stat_result) -> bool:
        """Whether a file is on a device of its own though nothing is mounted there, as on overlayfs.

        A folder can be that too, a subvolume, and nothing can be moved there from the store.
        """
        if stat.S_ISDIR(status.st_mode) or self._mount is None:
            return False
        return mount_of(folder, file) == self._mount

    def _original_length(self, folder: int, file: bytes, status: os.stat_result) -> int | None:
        """None if the file is no archive, or has a name under which archives are plain files.

        What cannot be read cannot be told to be an archive, and is shown as it is.
        """
        return self._look_inside(folder, file, status)[0]

    def _look_inside(
        self, folder: int, file: bytes, status: os.stat_result
    ) -> tuple[int | None, bool | None]:
        """As _original_length; and, if the file had to be opened for that, whether it is bare."""
        if not (is_reserved(file) and stat.S_ISREG(status.st_mode)):
            return None, None
        identity = Identity.of(status)
        known = self._heads.known(identity)
        if known is not None:
            return known.length, None
        try:
            descriptor = os.open(file, _FILE, dir_fd=folder)
        except OSError:
            return None, None
        try:
            head = _Head(_read_length(descriptor))
            opened = os.fstat(descriptor)
            self._heads.learn(identity if _same_state(opened, status) else Identity.of(opened), head)
            return head.length, _has_no_attributes(descriptor)
        except OSError:
            return None, None
        finally:
            os.close(descriptor)


class _Head(NamedTuple):
    """The original's length, 0 if neither head nor tail tells it, None if the file is no archive."""

    length: int | None


class _Heads:
    """The heads of files seen before, so that none is opened again while it has not changed."""

    def __init__(self) -> None:
        self._known: OrderedDict[Identity, _Head] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, identity: Identity) -> _Head | None:
        with self._lock:
            if identity in self._known:
                self._known.move_to_end(identity)
            return self._known.get(identity)

    def learn(self, identity: Identity, head: _Head) -> None:
        with self._lock:
            self._known[identity] = head
            if len(self._known) > _HEADS_KEPT:
                self._known.popitem(last=False)


class _Surveys:
    """What the folders that were listed last had, by the folder's inode number.

    A listing looks at every file again, and takes from here what is known of those that are unchanged.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, dict[bytes, Entry]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def of(self, folder: int) -> dict[bytes, Entry]:
        with self._lock:
            return self._entries.get(folder, {})

    def keep(self, folder: int, entries: dict[bytes, Entry]) -> None:
        with self._lock:
            self._count += len(entries) - len(self._entries.pop(folder, {}))
            self._entries[folder] = entries
            while self._count > _HEADS_KEPT and len(self._entries) > 1:
                self._count -= len(self._entries.popitem(last=False)[1])


def _same_state(one: os.stat_result, other: os.stat_result) -> bool:
    """As equal identities, of files on one device."""
    return (
        one.st_ctime_ns == other.st_ctime_ns
        and one.st_ino == other.st_ino
        and one.st_size == other.st_size
        and one.st_mtime_ns == other.st_mtime_ns
    )


def _read_length(file: int) -> int | None:
    try:
        return original_length(file)
    except NotArchive:
        return None
    except ArchiveError:
        return 0


def _is_bare(folder: int, file: bytes, status: os.stat_result) -> bool:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return False
    return _has_no_attributes(b"/proc/self/fd/%d/%s" % (folder, file))


def _has_no_attributes(file: int | bytes) -> bool:
    try:
        return not os.listxattr(file, follow_symlinks=isinstance(file, int))
    except OSError:
        return False


def _entry(name: bytes, file: bytes, length: int | None, status: os.stat_result, bare: bool) -> Entry:
    if length is None:
        return Entry(name, file, Kind.RAW, status.st_size, status, bare)
    return Entry(name, file, Kind.ARCHIVE, length, status, bare)
