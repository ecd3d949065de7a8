"""Writing to files, and how an archive becomes a raw file for it."""

import errno
import logging
import os
import resource
import time
from typing import Any, Protocol

import trio
from pyfuse3 import FileInfo, FUSEError, RequestContext

from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing, let_go
from brevisfs.fs._files import Files
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import descriptor_path, on_disk
from brevisfs.store import (
    Entry,
    Identity,
    Kind,
    Step,
    Temporary,
    copy_metadata,
    is_reserved,
    links,
    write_whole,
)

log = logging.getLogger("brevisfs.fs")

_PIECE = 4 << 20
# A write that takes longer than this many seconds was held up, by the disk or by other processes on this
# processor; those of the next second may be too.
_PATIENCE = 0.005
_THROTTLED = 1.0
_UNPACKERS = 4
# A copy-up that takes longer than this many seconds is told of while it goes on.
_TOLD = 5.0


Places = list[tuple[list[Step], bytes]]
"""Names of the mount, as (trail of the folder, name)."""


class Watcher(Protocol):
    """Whoever wants to know when files may change: see Recompression."""

    def begin_change(self, inode: Inode) -> None: ...
    def end_change(self, inode: Inode) -> None: ...
    def removed(self, inode: Inode) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def command(self, what: bytes) -> None: ...


class Writing(Files):
    """open to write, write, flush, fsync, and release of what was written."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.watcher: Watcher | None = None
        self._doubted_until = self._throttled_until = 0.0
        self._unpacking: dict[Inode, trio.Lock] = {}
        # Of their own, because they take long and other requests need threads.
        self._unpackers = trio.CapacityLimiter(_UNPACKERS)
        self.unpacked: dict[str, tuple[int, int]] = {}
        """Copy-ups that are under way: name in the store → bytes done and in all."""
        self.ending = False
        """The mount is to end soon: no copy-up is waited for."""

    async def open(self, inode: int, flags: int, ctx: RequestContext | None = None) -> FileInfo:
        access = flags & os.O_ACCMODE
        if access == os.O_RDONLY and not flags & os.O_TRUNC:
            return await super().open(inode, flags, ctx)
        file = self.inodes[inode]
        self.check_writable(file)
        self.begin_change(file)
        try:
            if flags & os.O_TRUNC:
                await self.resize(file, 0)
            async with file.lock:
                opened = await self._reopen_to_write(file, access)
                info = self.opened(file, opened, writable=True)
        except BaseException:
            self.end_change(file)
            raise
        return info

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        handle = self.files[fh]
        if handle.backing.kind is Kind.ARCHIVE:
            await self.unpack(handle.inode)
        if time.monotonic() < self._throttled_until:
            return await on_disk(_write_most, handle.backing.file, buf, off)
        return self._write_at_once(handle.backing.file, buf, off)

    def _write_at_once(self, file: int, data: bytes, offset: int) -> int:
        """Writes into the kernel's memory, which takes less than handing it to a thread would.

        The kernel holds up whoever writes faster than the disk can; then it does have to be a thread. But not
        if it was only that others had the processor: a thread would have to wait for it more often still.
        Which of the two it was is looked at once a write has been slow.
        """
        began = time.monotonic()
        slept = _sleeps() if began < self._doubted_until else None
        try:
            return _write_most(file, data, offset)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        finally:
            now = time.monotonic()
            if now - began > _PATIENCE:
                self._doubted_until = now + 2 * _THROTTLED
                if slept is not None and _sleeps() > slept:
                    self._throttled_until = now + _THROTTLED

    async def flush(self, fh: int) -> None:
        handle = self.files[fh]
        if handle.writable:
            # Closing a descriptor is when some filesystems tell of errors.
            with self.backings.held(handle.backing) as backing:
                await on_disk(_close_one_more, backing.file)

    async def fsync(self, fh: int, datasync: bool) -> None:
        with self.backings.held(self.files[fh].backing) as backing:
            await on_disk(os.fdatasync if datasync else os.fsync, backing.file)

    async def release(self, fh: int) -> None:
        handle = self.files[fh]
        if handle.writable:
            self.inodes.refresh(handle.inode, os.fstat(handle.backing.file))
            handle.inode.opened = handle.inode.identity
        await super().release(fh)
        if handle.writable:
            self.end_change(handle.inode)

    def check_writable(self, file: Inode) -> None:
        """Raises EROFS, or EINVAL for a file that would vanish from the mount if it became an archive."""
        self.check_writing()
        if any(is_reserved(name) for _, name in file.places):
            raise FUSEError(errno.EINVAL)

    def begin_change(self, file: Inode) -> None:
        """From now on the content may change, until `end_change`."""
        file.writers += 1
        file.changes += 1
        if self.watcher is not None:
            self.watcher.begin_change(file)

    def end_change(self, file: Inode) -> None:
        """The counterpart of `begin_change`."""
        file.writers -= 1
        if self.watcher is not None and file.writers == 0:
            self.watcher.end_change(file)

    async def resize(self, file: Inode, size: int, fh: int | None = None) -> None:
        """Makes a file shorter or longer. The caller has begun a change."""
        while True:
            if file.key[0] is Kind.ARCHIVE and await self._size_of(file) != size:
                await self.unpack(file, size)
            async with file.lock:
                if file.key[0] is Kind.RAW:
                    self.inodes.refresh(file, await self._resize_raw(file, size, fh))
                elif await self._size_of(file, holding=True) != size:
                    continue
                elif fh is not None:
                    self.inodes.refresh(file, await on_disk(_touch, self.files[fh].backing.file))
                return

    async def _size_of(self, file: Inode, *, holding: bool = False) -> int:
        if file.open and (reader := file.open[-1].reader) is not None:
            return reader.size
        return (await self.entry_of(file, holding=holding)).size

    async def _resize_raw(self, file: Inode, size: int, fh: int | None) -> os.stat_result:
        if fh is not None:
            return await on_disk(_resize_open, self.files[fh].backing.file, size)

        # By path, because that changes no times if the size is the same.
        def by_path(path: str) -> os.stat_result:
            os.truncate(path, size)
            return os.stat(path)

        def by_entry(folder: int, entry: Entry) -> os.stat_result:
            opened = self.store.open(folder, entry, os.O_PATH)
            try:
                return by_path(descriptor_path(opened))
            finally:
                os.close(opened)

        return await self.on_file(file, by_entry, by_path, holding=True)

    async def _reopen_to_write(self, file: Inode, access: int) -> Backing:
        """The file's backing file: one that can be written if it is raw, else the archive."""
        if file.key[0] is Kind.ARCHIVE:
            return await self._adopt(await self._reopen(file))

        def open_raw(folder: int, entry: Entry) -> Backing:
            opened = self.store.open(folder, entry, access)
            return Backing(os.fsdecode(entry.file), Kind.RAW, Identity.of(os.fstat(opened)), opened)

        return self.backings.own(
            await self.on_file(
                file, open_raw, lambda path: self.open_nameless(file, path, access), holding=True
            )
        )

    # How an archive becomes raw.

    async def unpack(self, file: Inode, size: int | None = None) -> None:
        """Copy-up: makes a file raw, cut off at `size` bytes. Returns when it is, whoever did it."""
        lock = self._unpacking.setdefault(file, trio.Lock())
        async with lock:
            try:
                if file.key[0] is Kind.ARCHIVE:
                    self.begin_change(file)
                    try:
                        await self._unpack(file, size)
                    finally:
                        self.end_change(file)
            finally:
                if not lock.statistics().tasks_waiting:
                    del self._unpacking[file]

    async def _unpack(self, file: Inode, size: int | None) -> None:
        private = self.changes.private
        async with file.lock:
            source = await self._adopt(await self._reopen(file))
        try:
            plain = await on_disk(private.temporary)
            try:
                await trio.to_thread.run_sync(self._decode, source, plain.file, size, limiter=self._unpackers)
                await self._commit_unpacked(file, source, plain)
            except (BrevisError, OSError) as error:
                log.error("%s cannot be unpacked to be written to: %s", source.name, error)
                number = error.errno if isinstance(error, OSError) else errno.EIO
                raise FUSEError(number or errno.EIO) from None
            finally:
                private.discard(plain)
                os.close(plain.file)
        finally:
            self.backings.release(source)

    def _decode(self, source: Backing, target: int, size: int | None) -> None:
        assert source.reader is not None
        whole = source.reader.size if size is None else min(size, source.reader.size)
        began = told = time.monotonic()
        buffer = bytearray(min(_PIECE, whole))
        try:
            for offset in range(0, whole, _PIECE):
                if self.ending:
                    raise OSError(errno.ECANCELED, "the mount is being ended")
                length = min(_PIECE, whole - offset)
                with memoryview(buffer)[:length] as piece:
                    source.reader.read_into(offset, piece)
                    write_whole(target, piece, offset)
                self.unpacked[source.name] = offset + length, whole
                if time.monotonic() - told > _TOLD:
                    told = time.monotonic()
                    log.info("%s is unpacked to be written to: %d of %d bytes", source.name, offset, whole)
            os.fsync(target)
        finally:
            self.unpacked.pop(source.name, None)
            source.reader.drop_programs()
        if whole:
            seconds = time.monotonic() - began
            log.info("%s was unpacked to be written to: %d bytes, %.1f s", source.name, whole, seconds)

    async def _commit_unpacked(self, file: Inode, source: Backing, plain: Temporary) -> None:
        """Puts the raw file in the archive's place, and the file's handles on it."""
        async with self.tree:
            while True:
                places = await on_disk(self._places_of, source.file, file)
                folders = [self.inodes.folder(trail) for trail, _ in places]
                try:
                    async with self.changing([file], folders):
                        # Names may have changed before the locks were there.
                        if places == await on_disk(self._places_of, source.file, file):
                            if file.places and not places:
                                raise FUSEError(errno.ESTALE)  # it was moved in the store itself
                            with self.unnoticed():
                                await on_disk(self._replace, source, plain, places)
                                self._move_handles(file, source.name, plain)
                            return
                finally:
                    for folder in folders:
                        self.inodes.unpin(folder)

    def _places_of(self, archive: int, file: Inode) -> Places:
        """All names that an open archive has in the store."""
        status = os.fstat(archive)
        known = [(folder.trail(), name) for folder, name in file.places]
        if status.st_nlink == 1 and known:
            return known[-1:]
        found = links(self.store, status) if status.st_nlink else []
        # Some may lie in a folder that cannot be listed.
        return found + [place for place in known if place not in found and self._is_at(status, *place)]

    def _is_at(self, archive: os.stat_result, trail: list[Step], name: bytes) -> bool:
        try:
            with self.store.folder(trail) as folder:
                return os.path.samestat(self.store.find(folder, name).status, archive)
        except OSError:
            return False

    def _replace(self, source: Backing, plain: Temporary, places: Places) -> None:
        """Raises ESTALE if the archive is not to be found where it should be: then nothing has changed.

        An archive that has no name any more leaves a raw file that has none.
        """
        copy_metadata(source.file, plain.file)
        os.fsync(plain.file)
        archive = os.fstat(source.file)
        if len(places) > 1:
            self.writing.unpack_links(places, archive, plain)
        for trail, name in places if len(places) == 1 else []:
            with self.store.folder(trail) as folder:
                entry = self.store.find(folder, name)
                if not os.path.samestat(entry.status, archive):
                    raise OSError(errno.ESTALE, "the archive was replaced", name)
                with self.writing.unnoticed(folder):
                    self.changes.unpack(folder, entry, plain)
        self.writing.catalog.forget({(archive.st_dev, archive.st_ino)})

    def _move_handles(self, file: Inode, name: str, plain: Temporary) -> None:
        status = os.fstat(plain.file)
        self.inodes.rebind(file, Kind.RAW, status)
        if file.open:
            opened = Backing(name, Kind.RAW, file.identity, os.dup(plain.file))
            self.give_backing(file, self.backings.own(opened))
        if file.nameless is not None:
            let_go(file.nameless)
            file.nameless = os.dup(plain.file)


def _sleeps() -> int:
    """How often this thread has waited for something other than a processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _resize_open(file: int, size: int) -> os.stat_result:
    os.ftruncate(file, size)
    return os.fstat(file)


def _touch(file: int) -> os.stat_result:
    os.utime(file)
    return os.fstat(file)


def _write_most(file: int, data: bytes, offset: int) -> int:
    """Writes all of `data`, or as much as there is room for, and returns how much that is."""
    done = os.pwrite(file, data, offset)
    while done < len(data):
        try:
            with memoryview(data)[done:] as rest:
                done += os.pwrite(file, rest, offset + done)
        except OSError:
            return done
    return done


def _close_one_more(file: int) -> None:
    os.close(os.dup(file))
