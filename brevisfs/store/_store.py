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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from brevisfs._native.folder import (
    Files,
    files_in,
    files_named,
    find_at_once,
    is_at_once,
    mount_of,
    reopen,
    status_of,
)
from brevisfs.store._errors import StoreNotFound
from brevisfs.store._looks import FILE, KEPT, UNKNOWN, Heads, Identity, Seen, read_length
from brevisfs.store._names import PRIVATE_FOLDER, candidates, ranked, shown_as

_TICK = 100_000_000
# Folders on a way that does not take long, 2 µs each.
_NEAR = 16
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Kind(Enum):
    """How the bytes of a file of the mount are kept."""

    RAW = "raw"
    ARCHIVE = "archive"

    # That of Enum is written in Python, and every key in the daemon's tables has a kind in it.
    __hash__ = object.__hash__


class Step(NamedTuple):
    """One folder on the way down: its name, and which folder it must be."""

    name: bytes
    device: int
    inode: int


Key = tuple[Kind, int, int]
"""A kind, and the device and inode of the backing file."""


class Entry(NamedTuple):
    """What a folder of the mount has under one name.

    `file` is the name in the store, `size` the length of the plain file; `status`, `identity` and `key` are
    those of the backing file, which is `bare` if it is known to have no extended attributes.
    """

    name: bytes
    file: bytes
    kind: Kind
    size: int
    status: os.stat_result
    identity: Identity
    key: Key
    bare: bool

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    def was_settled(self, begun: int) -> bool:
        """Whether what changes after a look that began then, in ns, shows.

        What changes again in the same tick of the clock need not.
        """
        return self.identity.ctime_ns < begun - _TICK


class Store:
    """A backing folder. Its methods block, but for `find_at_once` and `reopen`; any thread may call them.

    These two know nothing unless it `is_at_once`: what is in memory of it can be asked for without waiting.
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
        ((_, state),) = files_named(self.root, [b"."]).each()
        self._mount = mount_of(state)
        self.is_at_once = is_at_once(self.root)
        self._heads = Heads()
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
            for file, state in files_named(folder, candidates(name)).each():
                for entry in self._look_at(folder, [(file, state)]).values():
                    if entry.name == name:
                        return entry
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def entries(self, folder: int) -> list[Entry]:
        """Everything a folder of the mount has."""
        return [entry for entry, _ in self.survey(folder)]

    def survey(self, folder: int) -> list[tuple[Entry, list[Entry]]]:
        """Everything a folder of the mount has, each with the losers of its name."""
        begun, place = time.time_ns(), os.fstat(folder).st_ino
        last, files = self._surveys.of(place), files_in(folder)
        if files == last.files and last.found is not None:
            return last.found
        states, before = dict(files.each()), dict(last.files.each())
        entries = {file: e for file, e in last.entries.items() if states.get(file) == before[file]}
        entries.update(self._look_at(folder, [each for each in states.items() if each[0] not in entries]))
        found = _by_name(entries)
        self._surveys.keep(place, _Survey(files, entries, found).as_of(begun))
        return found

    def _look_at(self, folder: int, files: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Entry]:
        """Files in these states, each by itself, whatever else may stand for its name.

        Without those that something is mounted on.
        """
        seen = []
        for file, state in files:
            status = self._status(state)
            if status is not None:
                seen.append(Seen(file, state, status, Identity.of(status)))
        looks = self._heads.look_at(folder, seen)
        return {
            file: _entry(file, status, identity, length, bare)
            for (file, _, status, identity), (length, bare) in zip(seen, looks, strict=True)
        }

    def _status(self, state: bytes) -> os.stat_result | None:
        """None for what something is mounted on.

        A file can be on a device of its own though nothing is mounted there, as on overlayfs. A folder can be
        that too, a subvolume, and nothing can be moved there from the store.
        """
        status = status_of(state)
        if status.st_dev == self._device:
            return status
        same_mount = self._mount is not None and mount_of(state) == self._mount
        return status if same_mount and not stat.S_ISDIR(status.st_mode) else None

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
        file = os.open(entry.file, FILE | access, dir_fd=folder)
        if not os.path.samestat(os.fstat(file), entry.status):
            os.close(file)
            raise OSError(errno.ESTALE, "the file was replaced", entry.file)
        return file

    def find_at_once(self, trail: Sequence[Step], name: bytes) -> Entry | None:
        """As `find`, in the folder that a trail leads to, without waiting for a disk; None if that takes one.

        It is not told whether the file is bare.
        """
        files = candidates(name)
        near = self.is_at_once and len(trail) <= _NEAR and name != PRIVATE_FOLDER
        found = find_at_once(self.root, trail, files) if near else None
        if found is None:
            return None
        file, status = files[found[0]], self._status(found[1])
        if status is None:
            return None
        identity = Identity.of(status)
        length = self._heads.recall(file, status, identity)
        if length == UNKNOWN:
            return None
        entry = _entry(file, status, identity, length, bare=False)
        return entry if entry.name == name else None

    def reopen(
        self, trail: Sequence[Step], name: bytes, kind: Kind, identity: Identity
    ) -> tuple[int, bytes] | None:
        """A descriptor to read a file that was found before, and its name in the store.

        Waits for no disk. None if that takes one, or if not all is as it was found.
        """
        files = candidates(name)
        near = self.is_at_once and len(trail) <= _NEAR
        reopened = reopen(self.root, trail, files, identity) if near else None
        if reopened is None:
            return None
        file, which = reopened
        if (files[which] == name) != (kind is Kind.RAW):
            os.close(file)
            return None
        return file, files[which]

    def describe(self, path: str, kind: Kind) -> Entry:
        """The entry of a file that has no name any more, but a path through a descriptor of it."""
        status = os.stat(path)
        length = None
        if kind is Kind.ARCHIVE:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                length = read_length(file)
            finally:
                os.close(file)
        return _entry(b"", status, Identity.of(status), length, bare=False)

    def _shows_as(self, folder: int, file: bytes) -> bytes | None:
        """The name in the mount of a file, None if there is no such file."""
        entry = self._look_at(folder, files_named(folder, [file]).each()).get(file)
        return None if entry is None else entry.name


class _Survey(NamedTuple):
    """What a folder had: its files, what these are, and what they stand for.

    `found` is None if some of the files are missing in `entries`.
    """

    files: Files
    entries: dict[bytes, Entry]
    found: list[tuple[Entry, list[Entry]]] | None

    def as_of(self, begun: int) -> "_Survey":
        """What can be relied on."""
        old = {file: entry for file, entry in self.entries.items() if entry.was_settled(begun)}
        return self if len(old) == len(self.entries) else _Survey(self.files, old, None)


class _Surveys:
    """What the folders that were listed last had, by the folder's inode number.

    A listing asks for the states of all files, and takes from here what is known of those that are unchanged.
    """

    def __init__(self) -> None:
        self._surveys: OrderedDict[int, _Survey] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def of(self, folder: int) -> _Survey:
        with self._lock:
            return self._surveys.get(folder, _NOTHING)

    def keep(self, folder: int, survey: _Survey) -> None:
        with self._lock:
            self._count += len(survey.entries) - len(self._surveys.pop(folder, _NOTHING).entries)
            self._surveys[folder] = survey
            while self._count > KEPT and len(self._surveys) > 1:
                self._count -= len(self._surveys.popitem(last=False)[1].entries)


_NOTHING = _Survey(Files(b"", b""), {}, None)


def _by_name(entries: dict[bytes, Entry]) -> list[tuple[Entry, list[Entry]]]:
    shown = ranked((entry.name, file) for file, entry in entries.items())
    return [
        (entries[winner], [entries[loser] for loser in losers])
        for name, (winner, *losers) in shown.items()
        if name != PRIVATE_FOLDER
    ]


def _entry(file: bytes, status: os.stat_result, identity: Identity, length: int | None, bare: bool) -> Entry:
    """What a file is by itself; `length` is that of its original, None if it is no archive."""
    device, inode = identity[:2]
    if length is None:
        key = Kind.RAW, device, inode
        return Entry(file, file, Kind.RAW, status.st_size, status, identity, key, bare)
    key = Kind.ARCHIVE, device, inode
    return Entry(shown_as(file, True), file, Kind.ARCHIVE, length, status, identity, key, bare)
