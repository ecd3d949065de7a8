"""What is remembered of files that were looked at, so that none is opened again while it has not changed."""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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


UNKNOWN = -1
"""In place of a length."""


class Seen(NamedTuple):
    """A file of a folder as it was just now; `state` is what _native.folder has."""

    file: bytes
    state: bytes
    status: os.stat_result
    identity: Identity


class Heads:
    """Lengths of originals by the identity of the archive, None if that is none; and how to learn them."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[Identity, int | None] = OrderedDict()
        self._lock = threading.Lock()

    def look_at(self, folder: int, files: Sequence[Seen]) -> Iterator[tuple[int | None, bool]]:
        """Of files of a folder the length of the original, and whether they have no extended attributes.

        The length is 0 if neither head nor tail tells it; None if the file is no archive, or has a name under
        which archives are plain files, or cannot be read.
        """
        lengths = [self.recall(file, status, identity) for file, _, status, identity in files]
        names, states = [seen.file for seen in files], [seen.state for seen in files]
        looks = native.look_at(folder, names, states, [length == UNKNOWN for length in lengths])
        for seen, length, (told, changed, bare) in zip(files, lengths, looks, strict=True):
            yield self._learn(folder, seen, told, changed) if length == UNKNOWN else length, bare

    def recall(self, file: bytes, status: os.stat_result, identity: Identity) -> int | None:
        """As look_at, what is known without looking, UNKNOWN if nothing is."""
        if is_reserved(file) and stat.S_ISREG(status.st_mode):
            return self._lengths.get(identity, UNKNOWN)
        return None

    def _learn(self, folder: int, seen: Seen, told: int, changed: bool) -> int | None:
        """The length, remembered unless the file has changed since it was seen."""
        length: int | None = told
        if told == native.NOT_OPENED:
            return None
        if told == native.NO_HEAD:
            try:
                length = _without_head(folder, seen.file)
            except OSError:
                return None
        if not changed:
            with self._lock:
                self._lengths[seen.identity] = length
                if len(self._lengths) > KEPT:
                    self._lengths.popitem(last=False)
        return length


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
