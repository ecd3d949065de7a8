"""Inode numbers, and which file of the store each means.

A number is the daemon's own. It stays with one file: the same backing file in the same state, or in a
state that the daemon itself has brought about, or, while a handle holds the backing file open (so that the
store's filesystem cannot give its number away), the same backing file in any state; and the backing file
that takes its place when the daemon packs or unpacks it. Anything else found under a name gets a new
number, because the kernel keeps pages by number and would show the old file's to the readers of the new
one. No number is given twice.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyfuse3
import trio
from pyfuse3 import FUSEError

from brevisfs.fs._backing import Backing, let_go
from brevisfs.store import Entry, Identity, Key, Kind, Step

# More folders than a path can name; a longer chain can only be a loop.
_DEEPEST = 2048


@dataclass(slots=True, eq=False)
class Inode:
    """One file or folder that the kernel knows.

    `places` are the names that were found for it, as (folder, name), the last one last. A file that is
    `removed` has none, and neither has one that was replaced: `nameless` is then a descriptor of it, for
    those who found it before. `lookups` is the kernel's count, `pins` how often the daemon itself needs it.
    `open` has the backing of every open handle, the last opened last; `opened` is the state of the backing
    file whose pages the kernel may have, None before the first open. `writers` are the handles that could
    write, and whatever else is about to change the content; `changes` counts those that ever were.

    `lock` is held, of a file, while its backing file is exchanged, its metadata changed or a handle opened;
    of a folder, while names in it are changed; `is_changing` says that an exchange or a change of names is
    under way, which nobody must see half done. `version` of a folder grows with every change of what looking
    up a name in it finds. In the state `looked` it was seen whether the file is `bare`, see Entry.
    """

    number: int
    key: Key
    identity: Identity
    is_folder: bool
    places: list[tuple["Inode", bytes]] = field(default_factory=list)
    removed: bool = False
    nameless: int | None = None
    lookups: int = 0
    pins: int = 0
    open: list[Backing] = field(default_factory=list)
    opened: Identity | None = None
    writers: int = 0
    changes: int = 0
    version: int = 0
    no_capability: bool = False
    looked: Identity | None = None
    bare: bool = False
    is_changing: bool = False
    _lock: trio.Lock | None = None

    @property
    def parent(self) -> "Inode | None":
        return self.places[-1][0] if self.places else None

    @property
    def name(self) -> bytes:
        return self.places[-1][1] if self.places else b""

    @property
    def lock(self) -> trio.Lock:
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def is_locked(self) -> bool:
        return self._lock is not None and self._lock.locked()

    def is_meant_by(self, entry: Entry) -> bool:
        """Whether `entry` is this very file still."""
        if self.key != entry.key:
            return False
        return self.is_folder or bool(self.open) or self.identity == entry.identity

    def trail(self) -> list[Step]:
        """The way from the root down to this folder, the root left out."""
        steps: list[Step] = []
        folder = self
        while folder.number != pyfuse3.ROOT_INODE:
            if len(steps) == _DEEPEST or folder.parent is None:
                raise FUSEError(errno.ENOENT if folder.removed else errno.ESTALE)
            steps.append(Step(folder.name, *folder.key[1:]))
            folder = folder.parent
        return steps[::-1]

    def place(self) -> tuple["Inode", bytes]:
        """The folder that this file was last found in, and its name there.

        ENOENT if it was removed; ESTALE, upon which the kernel looks again, if its name is another file's.
        """
        if not self.places:
            raise FUSEError(errno.ENOENT if self.removed else errno.ESTALE)
        return self.places[-1]


@dataclass
class Inodes:
    """The table. All its methods belong to the event loop. `moves` counts how often a folder was moved."""

    root: Inode
    moves: int = 0
    _known: dict[int, Inode] = field(default_factory=dict)
    _by_key: dict[Key, Inode] = field(default_factory=dict)
    _by_place: dict[tuple[Inode, bytes], Inode] = field(default_factory=dict)
    # What a forgotten file was called, so that it gets its number again if it is still the same file.
    _forgotten: dict[Key, tuple[Identity, int]] = field(default_factory=dict)
    _last: int = pyfuse3.ROOT_INODE

    def __post_init__(self) -> None:
        self._known[self.root.number] = self.root
        self._by_key[self.root.key] = self.root

    def __getitem__(self, number: int) -> Inode:
        """Raises ESTALE for a number that the kernel was not told or has forgotten."""
        try:
            return self._known[number]
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    def __len__(self) -> int:
        return len(self._known)

    def being_changed(self, entries: Sequence[Entry]) -> Inode | None:
        """One that has the backing file of an entry in another state, and somebody is changing it."""
        inodes = map(self._by_key.get, [entry.key for entry in entries])
        for inode, entry in zip(inodes, entries, strict=True):
            if inode is not None and inode.is_locked and not inode.is_meant_by(entry):
                return inode
        return None

    def at(self, folder: Inode, name: bytes) -> Inode | None:
        """The inode that was last found there."""
        return self._by_place.get((folder, name))

    def assign(self, parent: Inode, entry: Entry) -> Inode:
        """The inode of what was found in `parent`; the caller counts the lookup or forgets it again."""
        key = entry.key
        inode = self._by_key.get(key)
        if inode is None or not inode.is_meant_by(entry):
            number = self._number_for(key, entry)
            inode = Inode(number, key, entry.identity, entry.is_folder)
            self._known[number] = self._by_key[key] = inode
            self._add_place(inode, parent, entry.name)
        elif inode is not self.root:
            self._add_place(inode, parent, entry.name)
            inode.identity = entry.identity
        return inode

    def folder(self, trail: Iterable[Step]) -> Inode:
        """The inode of the folder that a trail leads to, known to the kernel or not. Pinned: see `unpin`."""
        folder = self.root
        for step in trail:
            key = Kind.RAW, step.device, step.inode
            below = self._by_key.get(key)
            if below is None:
                self._last += 1
                identity = Identity(step.device, step.inode, 0, 0, 0)
                below = Inode(self._last, key, identity, is_folder=True)
                self._known[below.number] = self._by_key[key] = below
                self._add_place(below, folder, step.name)
            folder = below
        self.pin(folder)
        return folder

    def forget(self, references: Iterable[tuple[int, int]]) -> None:
        """Takes back references, as (number, how many)."""
        for number, count in references:
            inode = self._known.get(number)
            if inode is not None:
                inode.lookups -= count
                self._drop_if_unused(inode)

    def pin(self, inode: Inode) -> None:
        """Keeps the inode in the table, whatever the kernel forgets, until `unpin`."""
        inode.pins += 1

    def unpin(self, inode: Inode) -> None:
        inode.pins -= 1
        self._drop_if_unused(inode)

    def removed(self, folder: Inode, name: bytes) -> Inode | None:
        """A name is gone; the inode that had it."""
        folder.version += 1
        inode = self.at(folder, name)
        if inode is not None:
            self._remove_place(inode, folder, name)
        return inode

    def unlinked(self, folder: Inode, name: bytes) -> None:
        """As `removed`, with nothing else in its place."""
        inode = self.removed(folder, name)
        if inode is not None and not inode.places:
            inode.removed = True
            self._lose(inode)

    def moved(self, old_folder: Inode, old: bytes, new_folder: Inode, new: bytes) -> None:
        """A name has become another; whatever had that one is gone."""
        inode, replaced = self.at(old_folder, old), self.removed(new_folder, new)
        if replaced is not None and not replaced.places:
            self._lose(replaced)
        if inode is not None:
            self.moves += inode.is_folder
            self.pin(inode)
            self.removed(old_folder, old)
            self._add_place(inode, new_folder, new)
            self.unpin(inode)

    def exchanged(self, one_folder: Inode, one: bytes, other_folder: Inode, other: bytes) -> None:
        """Two names have changed places."""
        first, second = self.at(one_folder, one), self.at(other_folder, other)
        for inode, folder, name in ((first, other_folder, other), (second, one_folder, one)):
            if inode is not None:
                self.moves += inode.is_folder
                self.pin(inode)
                self._add_place(inode, folder, name)
        for inode, folder, name in ((first, one_folder, one), (second, other_folder, other)):
            if inode is not None:
                if (folder, name) in inode.places:
                    self._remove_place(inode, folder, name)
                self.unpin(inode)
        one_folder.version += 1
        other_folder.version += 1

    def keep(self, inode: Inode, file: int) -> None:
        """Takes a descriptor of a file, if it has lost its last name, for those who found it before."""
        if self._known.get(inode.number) is inode and not inode.places and inode.nameless is None:
            inode.nameless = file
        else:
            let_go(file)

    def refresh(self, inode: Inode, status: os.stat_result) -> None:
        """The daemon has changed the inode's backing file, which has `status` now."""
        if status.st_ctime_ns < inode.identity.ctime_ns:
            return  # somebody else was faster, and later
        before, inode.identity = inode.identity, Identity.of(status)
        if inode.opened == before:
            inode.opened = inode.identity
        if inode.identity[:2] != before[:2]:
            self._rekey(
                inode, (inode.key[0], status.st_dev, status.st_ino)
            )  # overlayfs made a copy to change
        self.outdate(inode)

    def rebind(self, inode: Inode, kind: Kind, status: os.stat_result) -> None:
        """The daemon has put another backing file with the same content in the place of the inode's."""
        unchanged = inode.opened == inode.identity
        self._rekey(inode, (kind, status.st_dev, status.st_ino))
        inode.identity = Identity.of(status)
        if unchanged or inode.open:
            inode.opened = inode.identity
        self.outdate(inode)

    def _rekey(self, inode: Inode, key: Key) -> None:
        if self._by_key.get(inode.key) is inode:
            del self._by_key[inode.key]
        inode.key = key
        self._by_key[key] = inode
        self._forgotten.pop(key, None)

    def _lose(self, inode: Inode) -> None:
        """A folder is in whatever state the same; but its number may soon be that of another one."""
        if inode.is_folder and self._by_key.get(inode.key) is inode:
            del self._by_key[inode.key]

    def outdate(self, inode: Inode) -> None:
        """What looking up the inode's names has found is so no more."""
        for folder, _ in inode.places:
            folder.version += 1

    def _add_place(self, inode: Inode, folder: Inode, name: bytes) -> None:
        place = folder, name
        if inode.places and inode.places[-1] == place:
            return
        other = self._by_place.get(place)
        if other is inode:
            inode.places.remove(place)
        else:
            if other is not None:
                self._remove_place(other, folder, name)
            if inode.is_folder and inode.places:
                self._remove_place(inode, *inode.places[-1])
            self._by_place[place] = inode
            self.pin(folder)
        inode.places.append(place)
        inode.removed = False

    def _remove_place(self, inode: Inode, folder: Inode, name: bytes) -> None:
        inode.places.remove((folder, name))
        if self._by_place.get((folder, name)) is inode:
            del self._by_place[folder, name]
        self.unpin(folder)

    def _drop_if_unused(self, inode: Inode) -> None:
        if inode is self.root or inode.lookups > 0 or inode.pins > 0:
            return
        if self._known.pop(inode.number, None) is None:
            return
        if self._by_key.get(inode.key) is inode:
            del self._by_key[inode.key]
            if inode.places:
                self._forgotten[inode.key] = inode.identity, inode.number
        for folder, name in list(inode.places):
            self._remove_place(inode, folder, name)
        if inode.nameless is not None:
            let_go(inode.nameless)

    def _number_for(self, key: Key, entry: Entry) -> int:
        identity, number = self._forgotten.pop(key, (None, 0))
        if identity is not None and (entry.is_folder or identity == entry.identity):
            return number
        self._last += 1
        return self._last
