"""The store's private folder: temporary files, and files that lost their name to another."""

import logging
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from brevisfs.store._names import PRIVATE_FOLDER
from brevisfs.store._syscalls import move

log = logging.getLogger("brevisfs.store")

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = b"tmp"
_LOST = b"lost+found"


@dataclass(frozen=True, slots=True)
class Temporary:
    """A file in the temporary folder, `file` open for reading and writing; whoever has it closes it."""

    name: bytes
    file: int


class Private:
    """`.brevisfs` of a store that this process holds the lock of. Methods block and raise OSError."""

    def __init__(self, root: int) -> None:
        with ExitStack() as opened:
            self.folder = _make_folder(root, PRIVATE_FOLDER)
            opened.callback(os.close, self.folder)
            self.temporaries = _make_folder(self.folder, _TEMPORARY)
            opened.callback(os.close, self.temporaries)
            self._lost = _make_folder(self.folder, _LOST)
            opened.callback(os.close, self._lost)
            self._opened = opened.pop_all()
        self._numbers = count()
        self.path = Path(os.readlink(f"/proc/self/fd/{self.folder}"))

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def temporary(self) -> Temporary:
        """A new empty file, readable by the owner alone."""
        name = b"%d-%d" % (os.getpid(), next(self._numbers))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return Temporary(name, os.open(name, flags, 0o600, dir_fd=self.temporaries))

    def discard(self, temporary: Temporary) -> None:
        """Removes a temporary file if it still has its name. Its descriptor stays open."""
        with suppress(FileNotFoundError):
            os.unlink(temporary.name, dir_fd=self.temporaries)

    def clear_temporaries(self) -> None:
        """Removes what a process that died has left."""
        for name in _list(self.temporaries):
            with suppress(IsADirectoryError):  # none of ours
                os.unlink(name, dir_fd=self.temporaries)

    def put_away(self, folder: int, file: bytes) -> None:
        """Moves a file of the store to lost+found, and says so in the log."""
        when = b"%d" % time.time_ns()
        os.mkdir(when, 0o700, dir_fd=self._lost)
        place = os.open(when, _FOLDER, dir_fd=self._lost)
        try:
            was = os.readlink(f"/proc/self/fd/{folder}")
            move(folder, file, place, file)
            now = os.readlink(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
        name = os.fsdecode(file)
        log.warning("%s/%s lost its name to another file and was moved to %s/%s", was, name, now, name)

    def count_lost(self) -> int:
        """How many files were put away and not looked after yet."""
        return len(_list(self._lost))


def _list(folder: int) -> list[bytes]:
    listing = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return [os.fsencode(name) for name in os.listdir(listing)]
    finally:
        os.close(listing)


def _make_folder(above: int, name: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    return os.open(name, _FOLDER, dir_fd=above)
