"""What is remembered of files that were looked at, so that none is opened again while it has not changed."""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import attrgetter
from typing import NamedTuple

from brevisfs._native import folder as native
from brevisfs.archive import ArchiveError, NotArchive, original_length
from brevisfs.store._names import is_reserved

KEPT = 16384
"""Files of which something is remembered at most."""
# Not blocking, so that a pipe put in the place of a file cannot hold the daemon up.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Identity(NamedTuple):
    """What tells one state of one backing file from another."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


_TELLS_APART = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
UNKNOWN = -1
"""In place of a length."""


class Seen(NamedTuple):
    """Files of a folder as they were just now, column by column; `states` are what _native.folder has."""

    files: Sequence[bytes]
    states: Sequence[bytes]
    statuses: Sequence[os.stat_result]
    identities: Sequence[Identity]

    @classmethod
    def of(cls, files: Iterable[tuple[bytes, bytes]]) -> "Seen":
        """Of files as (name, state)."""
        names, states = [file for file, _ in files], [state for _, state in files]
        statuses = native.statuses(states)
        # Without the call of a function for each, which takes as long as all the rest.
        identities = [tuple.__new__(Identity, told) for told in map(_TELLS_APART, statuses)]
        return cls(names, states, statuses, identities)


class Heads:
    """Lengths of originals by the identity of the archive, None if that is none; and how to learn them."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[Identity, int | None] = OrderedDict()
        self._lock = threading.Lock()

    def look_at(self, folder: int, seen: Seen) -> list[tuple[int | None, bool]]:
        """Of files of a folder the length of the original, and whether they have no extended attributes.

        The length is 0 if neither head nor tail tells it; None if the file is no archive, or has a name under
        which archives are plain files, or cannot be read.
        """
        lengths = list(map(self.recall, seen.files, seen.statuses, seen.identities))
        inside = [length == UNKNOWN for length in lengths]
        looks = native.look_at(folder, seen.files, seen.states, inside)
        learned: dict[Identity, int | None] = {}
        for place in compress(count(), inside):
            told, changed, _ = looks[place]
            if told == native.NOT_OPENED:
                lengths[place] = None
                continue
            try:
                lengths[place] = _without_head(folder, seen.files[place]) if told == native.NO_HEAD else told
            except OSError:
                lengths[place] = None
                continue
            if not changed:
                learned[seen.identities[place]] = lengths[place]
        self._remember(learned)
        return [(length, bare) for length, (_, _, bare) in zip(lengths, looks, strict=True)]

    def recall(self, file: bytes, status: os.stat_result, identity: Identity) -> int | None:
        """As look_at, what is known without looking, UNKNOWN if nothing is."""
        if is_reserved(file) and stat.S_ISREG(status.st_mode):
            return self._lengths.get(identity, UNKNOWN)
        return None

    def _remember(self, lengths: dict[Identity, int | None]) -> None:
        with self._lock:
            self._lengths.update(lengths)
            while len(self._lengths) > KEPT:
                self._lengths.popitem(last=False)


def _without_head(folder: int, file: bytes) -> int | None:
    """As Heads.look_at, of a file without a sound head."""
    descriptor = os.open(file, FILE, dir_fd=folder)
    try:
        return read_length(descriptor)
    finally:
        os.close(descriptor)


def read_length(file: int) -> int | None:
    """Of an open file, as Heads.look_at."""
    try:
        return original_length(file)
    except NotArchive:
        return None
    except ArchiveError:
        return 0
