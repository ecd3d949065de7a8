"""Packing and unpacking the files of a store in place, while nobody serves it."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from brevisfs import archive, synth
from brevisfs.recompress._check import check_room, looks_like_model, same_as, too_little
from brevisfs.store import (
    LONGEST_NAME,
    PENDING_SUFFIX,
    Entry,
    Identity,
    Kind,
    Session,
    Step,
    Store,
    Temporary,
    copy_metadata,
    equal_losers,
    is_reserved,
    links,
    settle,
    walk,
    write_whole,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a store: the folder it is in, and what it is."""

    trail: tuple[Step, ...]
    entry: Entry

    @property
    def path(self) -> str:
        return os.fsdecode(b"/".join([*(step.name for step in self.trail), self.entry.name]))


def tidy(session: Session) -> None:
    """Leaves every name of the store with one file, as a mount does when it starts."""
    store = session.changes.store
    for trail, found in walk(store):
        with store.folder(trail) as folder:
            for winner, losers in found:
                if losers or winner.file.endswith(PENDING_SUFFIX):
                    equal = equal_losers(store, folder, winner, losers)
                    settle(session.changes, folder, winner.name, equal)


def models(store: Store) -> Iterator[Found]:
    """The raw files of a store that look like models and can become archives."""
    for found in _files(store, Kind.RAW):
        entry = found.entry
        if len(entry.name) <= LONGEST_NAME and not is_reserved(entry.name) and entry.status.st_nlink == 1:
            with opened(store, found) as file:
                is_model = looks_like_model(file)
            if is_model:
                yield found


def archives(store: Store) -> Iterator[Found]:
    """The archives of a store."""
    return _files(store, Kind.ARCHIVE)


def convert(
    session: Session, found: Found, profile: synth.Profile, jobs: int, progress: Progress | None = None
) -> int | None:
    """Packs a model in place; the bytes it takes now, None if it stays because it would save too little.

    Raises what synth.pack raises, Mismatch, NoRoom, OSError, FileExistsError if the archive's name is taken.
    The file is then as it was.
    """
    size = found.entry.size
    if session.catalog.judgement(found.entry.identity) is not None:
        return None
    check_room(session.changes.store.root, size)
    with opened(session.changes.store, found) as source, _temporary(session) as made:
        status = os.fstat(source)
        report = synth.pack(source, made.file, profile=profile, jobs=jobs, progress=_part(progress, 0))
        reason = too_little(size, report.stored)
        if reason is not None:
            session.catalog.note_judgement(Identity.of(status), reason)
            return None
        if not same_as(source, made.file, jobs, _part(progress, 1)):
            raise archive.Mismatch("the archive is not the same as the file, and was not kept; report this")
        copy_metadata(source, made.file)
        os.fsync(made.file)
        with session.changes.store.folder(found.trail) as folder, session.unnoticed(folder):
            published = session.changes.publish(folder, found.entry.name, made, Identity.of(status))
        session.catalog.note_ctime(published.status, status.st_ctime_ns)
    return report.stored


def restore(session: Session, found: Found, jobs: int, progress: Progress | None = None) -> None:
    """Unpacks an archive in place, with all names that it has.

    Raises ArchiveError, NoRoom, OSError; the archive is then as it was.
    """
    check_room(session.changes.store.root, found.entry.size)
    store = session.changes.store
    with opened(session.changes.store, found) as source, _temporary(session) as made:
        reader = archive.Reader(source)
        digest = hashlib.sha256()
        for offset, data in archive.decoded(reader, jobs):
            plain = data.tobytes()
            digest.update(plain)
            write_whole(made.file, plain, offset)
            if progress is not None:
                progress(offset + len(data), reader.size)
        if digest.digest() != reader.sha256:
            raise archive.Mismatch("the unpacked bytes are not those that were packed; the archive stays")
        copy_metadata(source, made.file)
        os.fsync(made.file)
        if found.entry.status.st_nlink > 1:
            session.unpack_links(links(store, found.entry.status), found.entry.status, made)
        else:
            with store.folder(found.trail) as folder, session.unnoticed(folder):
                session.changes.unpack(folder, found.entry, made)


def _files(store: Store, kind: Kind) -> Iterator[Found]:
    for trail, found in walk(store):
        for name in sorted(entry.name for entry, _ in found if entry.kind is kind):
            # As it is now: another name of it may have been dealt with meanwhile.
            with store.folder(trail) as folder:
                entry = store.find(folder, name)
            if entry.kind is kind and stat.S_ISREG(entry.status.st_mode):
                yield Found(tuple(trail), entry)


@contextmanager
def opened(store: Store, found: Found) -> Iterator[int]:
    """A descriptor of a file's backing file, for the time of the block."""
    with store.folder(found.trail) as folder:
        file = store.open(folder, found.entry)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _temporary(session: Session) -> Iterator[Temporary]:
    private = session.changes.private
    temporary = private.temporary()
    try:
        yield temporary
    finally:
        private.discard(temporary)
        os.close(temporary.file)


def _part(progress: Progress | None, part: int) -> Progress | None:
    """Progress of the first or second of two passes, as part of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, 2 * total)
