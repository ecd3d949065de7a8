"""The way of a raw file to an archive that nobody notices, but for the packing itself."""

import errno
import logging
import os
import stat
from dataclasses import dataclass
from functools import partial

import trio
from pyfuse3 import FUSEError

from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import on_disk
from brevisfs.fs._writing import Writing
from brevisfs.recompress import looks_like_model
from brevisfs.store import (
    ARCHIVE_SUFFIX,
    Entry,
    Identity,
    Kind,
    SourceMoved,
    Step,
    Temporary,
    copy_metadata,
    is_reserved,
)

log = logging.getLogger("brevisfs.fs")


@dataclass(frozen=True, slots=True)
class Source:
    """A raw file as it is when its packing begins: open, with its inode's count of changes."""

    name: str
    file: int
    identity: Identity
    changes: int


class Publishing(Writing):
    """Opening files to be packed, and putting archives in their place."""

    async def source(self, inode: Inode) -> Source | None:
        """The file, open to be packed; None if it is none to be packed. The caller closes it."""

        def open_source(folder: int, entry: Entry) -> Source | None:
            if is_reserved(entry.name) or not self.changes.can_be_archive(folder, entry.name):
                return None
            if self.store.losers(folder, entry):
                return None
            if not stat.S_ISREG(entry.status.st_mode) or entry.status.st_nlink != 1:
                return None
            file = self.store.open(folder, entry)
            identity = Identity.of(os.fstat(file))
            catalog = self.writing.catalog
            if identity == entry.identity and catalog.judgement(identity) is None and looks_like_model(file):
                return Source(os.fsdecode(entry.file), file, identity, inode.changes)
            os.close(file)
            return None

        async with inode.lock:
            if inode.writers or inode.key[0] is not Kind.RAW or not inode.places:
                return None
            try:
                return await self.at(inode, open_source, holding=True)
            except FUSEError as error:
                if error.errno in (errno.ENOENT, errno.ESTALE):
                    return None
                raise

    async def publish(self, inode: Inode, source: Source, archive: Temporary) -> bool:
        """Puts the archive of a file in the file's place; False if the file is not what was packed any more.

        Raises OSError and FUSEError if the archive cannot have the file's metadata or name, and if the disk
        is full.
        """
        while inode.places:
            status = os.fstat(source.file)
            if (status.st_size, status.st_mtime_ns) != (source.identity.size, source.identity.mtime_ns):
                return False
            await trio.to_thread.run_sync(_give_metadata, source.file, archive.file)
            place = inode.place()
            attempt = partial(self._publish_at, inode, place, source, status, archive)
            done = await self.steadily([place[0]], attempt)
            if done is not None:
                return done
        return False

    async def _publish_at(
        self,
        inode: Inode,
        place: tuple[Inode, bytes],
        source: Source,
        raw: os.stat_result,
        archive: Temporary,
    ) -> bool | None:
        """None if the file has another name or other metadata by now: no reason to pack it again."""
        folder, name = place
        async with self.changing([inode], [folder]):
            if inode.writers or inode.changes != source.changes or inode.key[0] is not Kind.RAW:
                return False
            if inode.places[-1:] != [place] or os.fstat(source.file) != raw:
                return None
            with trio.CancelScope(shield=True), self.unnoticed():
                try:
                    made = await on_disk(self._publish, folder.trail(), name, raw, archive)
                except SourceMoved:
                    return False
                opened = await self._open_published(name, archive, made) if inode.open else None
                self.inodes.rebind(inode, Kind.ARCHIVE, made)
                if opened is not None:
                    self.give_backing(inode, opened)
            return True

    def _publish(
        self, trail: list[Step], name: bytes, raw: os.stat_result, archive: Temporary
    ) -> os.stat_result:
        session = self.writing
        with self.store.folder(trail) as folder, session.unnoticed(folder):
            made = session.changes.publish(folder, name, archive, Identity.of(raw)).status
        session.catalog.note_ctime(made, raw.st_ctime_ns)
        return made

    async def _open_published(self, name: bytes, archive: Temporary, made: os.stat_result) -> Backing | None:
        """The archive, for the handles of the file; None if it cannot be opened: they keep the raw file."""
        file = await on_disk(os.open, f"/proc/self/fd/{archive.file}", os.O_RDONLY | os.O_CLOEXEC)
        shown = os.fsdecode(name + ARCHIVE_SUFFIX)
        try:
            return await self.backings.adopt(Backing(shown, Kind.ARCHIVE, Identity.of(made), file))
        except (BrevisError, OSError) as error:
            log.error("%s: %s", shown, error)
            return None


def _give_metadata(source: int, archive: int) -> None:
    copy_metadata(source, archive)
    os.fsync(archive)
