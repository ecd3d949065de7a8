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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import compress
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
    statuses,
)
from brevisfs.store._errors import StoreNotFound
from brevisfs.store._looks import FILE, KEPT, UNKNOWN, Heads, Identity, Seen, read_length
from brevisfs.store._names import PRIVATE_FOLDER, candidates, ranked, shown_as

_TICK = 100_000_000
# Files looked at in a call: what is made of more is not in the processor's cache when it is used next.
_AT_ONCE = 1024
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
        (entry,) = self.find_all(folder, [name])
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return entry

    def find_all(self, folder: int, names: Sequence[bytes]) -> list[Entry | None]:
        """What a folder of the mount has under each name, None if nothing."""
        files = files_named(folder, [file for name in names for file in candidates(name)])
        entries = {entry.file: entry for entry in self._look_at(folder, list(files.each()))}
        return [_winner(entries, name) for name in names]

    def entries(self, folder: int) -> Sequence[Entry]:
        """Everything a folder of the mount has."""
        return self._survey(folder).winners

    def survey(self, folder: int) -> list[tuple[Entry, Sequence[Entry]]]:
        """Everything a folder of the mount has, each with the losers of its name."""
        found = self._survey(folder)
        return [(entry, found.losers.get(entry.name, ())) for entry in found.winners]

    def _survey(self, folder: int) -> "_Found":
        begun, place = time.time_ns(), os.fstat(folder).st_ino
        last, files = self._surveys.of(place), files_in(folder)
        if files == last.files and last.found is not None:
            return last.found
        here = list(files.each())
        before = {file: last.entries.get(file[0]) for file in last.files.each()}
        entries = {file[0]: entry for file in here if (entry := before.get(file)) is not None}
        new = [file for file in here if file[0] not in entries]
        for at in range(0, len(new), _AT_ONCE):
            looked = self._look_at(folder, new[at : at + _AT_ONCE])
            entries.update((entry.file, entry) for entry in looked)
        found = _by_name(entries)
        self._surveys.keep(place, _Survey(files, entries, found).as_of(begun))
        return found

    def _look_at(self, folder: int, files: Sequence[tuple[bytes, bytes]]) -> list[Entry]:
        """Files in these states, each by itself, whatever else may stand for its name.

        Without those that something is mounted on.
        """
        seen = Seen.of(files)
        if any(status.st_dev != self._device for status in seen.statuses):
            ours = map(self._is_ours, seen.states, seen.statuses)
            seen = Seen.of(list(compress(files, ours)))
        looks = self._heads.look_at(folder, seen)
        return [
            _entry(file, status, identity, length, bare)
            for file, status, identity, (length, bare) in zip(
                seen.files, seen.statuses, seen.identities, looks, strict=True
            )
        ]

    def _is_ours(self, state: bytes, status: os.stat_result) -> bool:
        """Whether nothing is mounted on a file.

        A file can be on a device of its own though nothing is mounted there, as on overlayfs. A folder can be
        that too, a subvolume, and nothing can be moved there from the store.
        """
        if status.st_dev == self._device:
            return True
        same_mount = self._mount is not None and mount_of(state) == self._mount
        return same_mount and not stat.S_ISDIR(status.st_mode)

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
        file, state = files[found[0]], found[1]
        (status,) = statuses([state])
        if not self._is_ours(state, status):
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
        for entry in self._look_at(folder, list(files_named(folder, [file]).each())):
            return entry.name
        return None


class _Found(NamedTuple):
    """What the files of a folder stand for; `losers` has those of names that have some."""

    winners: Sequence[Entry]
    losers: Mapping[bytes, Sequence[Entry]]


class _Survey(NamedTuple):
    """What a folder had: its files, what these are by their names, and what they stand for.

    `found` is None if some of the files are missing in `entries`.
    """

    files: Files
    entries: dict[bytes, Entry]
    found: _Found | None

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


def _winner(entries: Mapping[bytes, Entry], name: bytes) -> Entry | None:
    if name == PRIVATE_FOLDER:
        return None
    files = (entries.get(file) for file in candidates(name))
    return next((entry for entry in files if entry is not None and entry.name == name), None)


def _by_name(entries: dict[bytes, Entry]) -> _Found:
    shown = [entry.name for entry in entries.values()]
    if len(set(shown)) == len(shown) and PRIVATE_FOLDER not in shown:
        return _Found(list(entries.values()), {})
    files = ranked(zip(shown, entries, strict=True))
    files.pop(PRIVATE_FOLDER, None)
    return _Found(
        [entries[winner] for winner, *_ in files.values()],
        {name: [entries[file] for file in losers] for name, (_, *losers) in files.items() if losers},
    )


def _entry(file: bytes, status: os.stat_result, identity: Identity, length: int | None, bare: bool) -> Entry:
    """What a file is by itself; `length` is that of its original, None if it is no archive."""
    kind, name, size = Kind.ARCHIVE, file, length
    if size is None:
        kind, size = Kind.RAW, status.st_size
    else:
        name = shown_as(file, True)
    key = kind, identity[0], identity[1]
    # A folder has many files, and a NamedTuple's own constructor takes twice as long.
    return tuple.__new__(Entry, (name, file, kind, size, status, identity, key, bare))
