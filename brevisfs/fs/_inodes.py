"""Inode numbers, and which file of the store each means.

A number is the daemon's own. It stays with one file: the same backing file in the same state, or, while a
handle holds the backing file open (so that the store's filesystem cannot give its number away), the same
backing file in any state. Anything else found under a name gets a new number, because the kernel keeps
pages by number and would show the old file's to the readers of the new one. No number is given twice.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyfuse3
from pyfuse3 import FUSEError

from brevisfs.fs._backing import Backing
from brevisfs.store import Entry, Identity, Kind, Step

# More folders than a path can name; a longer chain can only be a loop.
_DEEPEST = 2048

Key = tuple[Kind, int, int]


@dataclass(slots=True, eq=False)
class Inode:
    """One file or folder that the kernel knows, with the place where it was last found.

    `lookups` is the kernel's count; `open` the backing of every open handle, the last opened last;
    `opened` the state of the backing file at the last open, None before the first.
    """

    number: int
    parent: "Inode | None"
    name: bytes
    key: Key
    identity: Identity
    is_folder: bool
    lookups: int = 0
    open: list[Backing] = field(default_factory=list)
    opened: Identity | None = None

    def is_meant_by(self, entry: Entry) -> bool:
        """Whether `entry` is this very file still."""
        if self.key != key_of(entry):
            return False
        return self.is_folder or bool(self.open) or self.identity == entry.identity

    def trail(self) -> list[Step]:
        """The way from the root down to this folder, the root left out."""
        steps: list[Step] = []
        folder = self
        while folder.parent is not None:
            if len(steps) == _DEEPEST:
                raise FUSEError(errno.ESTALE)
            steps.append(Step(folder.name, *folder.key[1:]))
            folder = folder.parent
        return steps[::-1]

    def place(self) -> tuple[list[Step], bytes]:
        """The trail of the folder that this file was last found in, and its name there."""
        if self.parent is None:
            raise FUSEError(errno.ESTALE)
        return self.parent.trail(), self.name


def key_of(entry: Entry) -> Key:
    return entry.kind, entry.status.st_dev, entry.status.st_ino


@dataclass
class Inodes:
    """The table. All its methods belong to the event loop."""

    root: Inode
    _known: dict[int, Inode] = field(default_factory=dict)
    _by_key: dict[Key, Inode] = field(default_factory=dict)
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

    def assign(self, parent: Inode, entry: Entry) -> Inode:
        """The inode of what was found in `parent`; the caller counts the lookup or forgets it again."""
        key = key_of(entry)
        inode = self._by_key.get(key)
        if inode is None or not inode.is_meant_by(entry):
            number = self._number_for(key, entry)
            inode = Inode(number, parent, entry.name, key, entry.identity, entry.is_folder)
            self._known[number] = self._by_key[key] = inode
        elif inode is not self.root:
            inode.parent, inode.name, inode.identity = parent, entry.name, entry.identity
        return inode

    def forget(self, references: Iterable[tuple[int, int]]) -> None:
        """Takes back references, as (number, how many)."""
        for number, count in references:
            inode = self._known.get(number)
            if inode is None or inode is self.root:
                continue
            inode.lookups -= count
            if inode.lookups <= 0:
                del self._known[number]
                if self._by_key.get(inode.key) is inode:
                    del self._by_key[inode.key]
                    self._forgotten[inode.key] = inode.identity, number

    def _number_for(self, key: Key, entry: Entry) -> int:
        identity, number = self._forgotten.pop(key, (None, 0))
        if identity is not None and (entry.is_folder or identity == entry.identity):
            return number
        self._last += 1
        return self._last
