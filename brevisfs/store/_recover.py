"""Bringing a store in order: what a process that died in the middle of a change has left."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from brevisfs.archive import Reader
from brevisfs.errors import BrevisError
from brevisfs.store._changes import Changes, same_times, sync_folder
from brevisfs.store._looks import Identity
from brevisfs.store._names import ARCHIVE_SUFFIX, PENDING_SUFFIX
from brevisfs.store._private import Private, Temporary
from brevisfs.store._store import Entry, Kind, Step, Store
from brevisfs.store._syscalls import move
from brevisfs.store._whole import read_whole, write_whole

_INTENT = b"intent"
_INTENDED = b"intended"
_PIECE = 4 << 20

Bytes = npt.NDArray[np.uint8]

Place = tuple[list[bytes], bytes]
"""Where a name of the mount is: the names of the folders down to it, and its own."""


def begin(changes: Changes) -> None:
    """What has to be done before a store is served: finishes a change of many names, empties `tmp`."""
    finish_intent(changes.store, changes.private)
    changes.private.clear_temporaries()


def unpack_links(
    changes: Changes, places: Sequence[Place], archive: os.stat_result, plain: Temporary
) -> None:
    """As Changes.unpack, of an archive with several names: all of them are the raw file afterwards.

    `places` are all names of the archive. From the moment that the record of what is intended is on disk,
    the change will be finished, by the next start if not now.
    """
    private = changes.private
    finish_intent(changes.store, private)
    move(private.temporaries, plain.name, private.folder, _INTENDED)
    record = {
        "archive": [archive.st_size, archive.st_mtime_ns],
        "inode": archive.st_ino,
        "names": [([os.fsdecode(step) for step in trail], os.fsdecode(name)) for trail, name in places],
    }
    try:
        sync_folder(private.folder)
        _record_intent(private, json.dumps(record).encode())
    except OSError:
        os.unlink(_INTENDED, dir_fd=private.folder)
        raise
    finish_intent(changes.store, private)


def _record_intent(private: Private, record: bytes) -> None:
    draft = private.temporary()
    try:
        write_whole(draft.file, record, 0)
        os.fsync(draft.file)
        move(private.temporaries, draft.name, private.folder, _INTENT)
    finally:
        private.discard(draft)
        os.close(draft.file)
    sync_folder(private.folder)


def finish_intent(store: Store, private: Private) -> None:
    """Does what is left to do of a recorded change of many names, if there is one."""
    try:
        file = os.open(_INTENT, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=private.folder)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            os.unlink(_INTENDED, dir_fd=private.folder)
        return
    with open(file, "rb") as text:
        record = json.load(text)
    archive = tuple(record["archive"])
    found = True
    for trail, name in record["names"]:
        try:
            with store.folder_at([os.fsencode(step) for step in trail]) as folder:
                found &= _unpack_link(store, private, folder, os.fsencode(name), archive)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            found = False
    if not found:
        _unpack_moved(store, private, record["inode"], archive)
    os.unlink(_INTENT, dir_fd=private.folder)
    sync_folder(private.folder)
    os.unlink(_INTENDED, dir_fd=private.folder)


def _unpack_moved(store: Store, private: Private, number: int, archive: tuple[int, int]) -> None:
    """Finds names that were changed, or whose folders were, between the starts. In a copy the archive has
    another number: such names then keep it, which has the same bytes.
    """

    def is_it(status: os.stat_result) -> bool:
        return (status.st_ino, status.st_size, status.st_mtime_ns) == (number, *archive)

    for trail, name in _archives(store, is_it):
        with store.folder(trail) as folder:
            _unpack_link(store, private, folder, name, archive)


def _unpack_link(store: Store, private: Private, folder: int, name: bytes, archive: tuple[int, int]) -> bool:
    """Whether the name is the raw file's now."""
    suffixed = (name + PENDING_SUFFIX, name + ARCHIVE_SUFFIX)
    present = [file for file in suffixed if _is_archive(store, folder, file, archive)]
    if not present:
        return _is_intended(private, folder, name)
    with same_times(folder):
        with suppress(FileExistsError):
            os.link(_INTENDED, name, src_dir_fd=private.folder, dst_dir_fd=folder, follow_symlinks=False)
        is_intended = _is_intended(private, folder, name)
        if is_intended:
            sync_folder(folder)
            for file in present:
                os.unlink(file, dir_fd=folder)
    return is_intended


def _is_intended(private: Private, folder: int, name: bytes) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.stat(_INTENDED, dir_fd=private.folder, follow_symlinks=False))


def _is_archive(store: Store, folder: int, file: bytes, archive: tuple[int, int]) -> bool:
    try:
        status = os.stat(file, dir_fd=folder, follow_symlinks=False)
    except OSError:  # not there, or too long a name
        return False
    return (status.st_size, status.st_mtime_ns) == archive and not store.is_plain(folder, file)


def walk(store: Store) -> Iterator[tuple[list[Step], list[tuple[Entry, Sequence[Entry]]]]]:
    """Every folder of a store, each with what it has and the losers, see Store.survey.

    A folder that goes away or cannot be read meanwhile is left out.
    """
    waiting: list[list[Step]] = [[]]
    while waiting:
        trail = waiting.pop()
        try:
            with store.folder(trail) as folder:
                found = store.survey(folder)
        except OSError:
            continue
        yield trail, found
        for entry, _ in found:
            if entry.is_folder:
                waiting.append([*trail, Step(entry.file, entry.status.st_dev, entry.status.st_ino)])


def links(store: Store, archive: os.stat_result) -> list[tuple[list[Step], bytes]]:
    """All names of an archive, as (trail of the folder, name)."""
    return _archives(store, lambda status: os.path.samestat(status, archive))


def _archives(store: Store, is_it: Callable[[os.stat_result], bool]) -> list[tuple[list[Step], bytes]]:
    return [
        (trail, entry.name)
        for trail, found in walk(store)
        for entry, _ in found
        if entry.kind is Kind.ARCHIVE and is_it(entry.status)
    ]


def settle(changes: Changes, folder: int, name: bytes, equal: Sequence[Entry]) -> None:
    """Leaves a name with its winner alone, under its usual file name.

    Losers that are among `equal`, in that state, are removed; all others are put away.
    """
    winner = changes.store.find(folder, name)
    same = {(entry.file, entry.identity) for entry in equal}
    with same_times(folder):
        for file in changes.store.losers(folder, winner):
            status = os.stat(file, dir_fd=folder, follow_symlinks=False)
            if (file, Identity.of(status)) in same:
                os.unlink(file, dir_fd=folder)
            else:
                changes.private.put_away(folder, file)
        if winner.kind is Kind.ARCHIVE and winner.file == name + PENDING_SUFFIX:
            with suppress(FileExistsError):  # a plain file is called so, and the archive can stay as it is
                move(folder, winner.file, folder, name + ARCHIVE_SUFFIX)


def equal_losers(store: Store, folder: int, winner: Entry, losers: Sequence[Entry]) -> list[Entry]:
    """Those of the losers that hold the same bytes as the winner. Reads and decodes all of them."""
    return [loser for loser in losers if _same_content(store, folder, winner, loser)]


def _same_content(store: Store, folder: int, one: Entry, other: Entry) -> bool:
    if one.size != other.size or not all(stat.S_ISREG(entry.status.st_mode) for entry in (one, other)):
        return False
    try:
        with _content(store, folder, one) as first, _content(store, folder, other) as second:
            ranges = ((begin, min(one.size, begin + _PIECE)) for begin in range(0, one.size, _PIECE))
            return all(np.array_equal(first(begin, end), second(begin, end)) for begin, end in ranges)
    except (BrevisError, OSError):
        return False


@contextmanager
def _content(store: Store, folder: int, entry: Entry) -> Iterator[Callable[[int, int], Bytes]]:
    """A function that reads the plain bytes begin…end of a file of the mount."""
    file = store.open(folder, entry)
    try:
        reader = Reader(file) if entry.kind is Kind.ARCHIVE else None

        def read(begin: int, end: int) -> Bytes:
            if reader is None:
                return np.frombuffer(read_whole(file, end - begin, begin), np.uint8)
            out = np.empty(end - begin, np.uint8)
            reader.read_into(begin, out)
            return out

        yield read
    finally:
        os.close(file)
