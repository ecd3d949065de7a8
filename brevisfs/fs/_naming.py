"""Making, moving and removing names."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext

from brevisfs.fs._attributes import Attributes
from brevisfs.fs._backing import Backing, let_go
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import on_disk
from brevisfs.fs._writing import Writing
from brevisfs.store import Entry, Kind, NeedsRaw, Step

_MODE = 0o7777
_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Owner:
    """To whom a new file belongs: who asked for it, but to the group of a folder that says so."""

    user: int
    group: int

    def of_new(self, folder: int, made: os.stat_result) -> tuple[int, int] | None:
        """User and group to give to a file just made in the folder; None if it has the right ones."""
        inherited = os.stat(b".", dir_fd=folder).st_mode & stat.S_ISGID
        wanted = self.user, made.st_gid if inherited else self.group
        return None if wanted == (made.st_uid, made.st_gid) else wanted


class _Watched(NamedTuple):
    """A file after a change of its name: its status, and a descriptor that leads to it, if that was kept."""

    status: os.stat_result
    descriptor: int | None


class Naming(Writing, Attributes):
    """create, mknod, mkdir, symlink, link, unlink, rmdir, rename."""

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        folder = self.inodes[parent_inode]
        self.check_writing()
        owner = _Owner(ctx.uid, ctx.gid)
        access = flags & os.O_ACCMODE

        async def create() -> tuple[FileInfo, EntryAttributes]:
            async with self.changing([], [folder]):
                file, entry = await on_disk(self._create, folder.trail(), name, access, mode, owner)
                folder.version += 1
                found = self.found(folder, entry)
                inode = self.inodes[found.st_ino]
                writable = access != os.O_RDONLY
                if writable:
                    self.begin_change(inode)
                backing = self.backings.own(Backing(os.fsdecode(name), Kind.RAW, entry.identity, file))
                return self.opened(inode, backing, writable=writable), found

        try:
            return await self.steadily([folder], create)
        except FUSEError as error:
            if error.errno != errno.EEXIST or flags & os.O_EXCL:
                raise
        # Somebody else made it meanwhile.
        found = await self.lookup(parent_inode, name, ctx)
        try:
            return await self.open(found.st_ino, flags & ~os.O_CREAT, ctx), found
        except FUSEError:
            self.inodes.forget([(found.st_ino, 1)])
            raise

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        def make(folder: int) -> None:
            os.mknod(name, mode, rdev, dir_fd=folder)

        return await self._make(parent_inode, name, make, mode, ctx)

    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        def make(folder: int) -> None:
            os.mkdir(name, mode & _MODE, dir_fd=folder)

        return await self._make(parent_inode, name, make, mode, ctx)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        def make(folder: int) -> None:
            os.symlink(target, name, dir_fd=folder)

        return await self._make(parent_inode, name, make, 0, ctx)

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        file, folder = self.inodes[inode], self.inodes[new_parent_inode]
        self.check_writing()
        while True:
            place = file.place()

            async def link(place: tuple[Inode, bytes] = place) -> EntryAttributes | None:
                return await self._link(file, place, folder, new_name)

            try:
                made = await self.steadily([folder, place[0]], link)
            except NeedsRaw:
                await self.unpack(file)
            else:
                if made is not None:
                    return made

    async def _link(
        self, file: Inode, place: tuple[Inode, bytes], folder: Inode, new: bytes
    ) -> EntryAttributes | None:
        """None if the file was renamed before the locks were there."""
        old_folder, old = place
        changes = self.changes

        def link_on_disk(old_trail: list[Step], new_trail: list[Step]) -> Entry:
            with self.store.folder(old_trail) as here, self.store.folder(new_trail) as there:
                return changes.link(here, old, there, new)

        async with self.changing([file], [folder, old_folder]):
            if file.place() != place:
                return None
            entry = await on_disk(link_on_disk, old_folder.trail(), folder.trail())
            folder.version += 1
            self.inodes.refresh(file, entry.status)
            return self.found(folder, entry)

    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext | None = None) -> None:
        # A file has to be freed before anybody hears of it.
        await self._remove(parent_inode, name, self._unlink, keep=False)

    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext | None = None) -> None:
        await self._remove(parent_inode, name, self._rmdir, keep=True)

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext | None = None,
    ) -> None:
        self.check_writing()
        places = ((self.inodes[parent_inode_old], name_old), (self.inodes[parent_inode_new], name_new))
        if flags not in (0, pyfuse3.RENAME_NOREPLACE, pyfuse3.RENAME_EXCHANGE):
            raise FUSEError(errno.EINVAL)
        await self._sync_early(places)
        while True:
            try:
                if await self.steadily([places[0][0], places[1][0]], lambda: self._rename(places, flags)):
                    return
            except NeedsRaw as error:
                await self._make_raw(*places[error.second])

    async def _sync_early(self, places: Sequence[tuple[Inode, bytes]]) -> None:
        """A raw file that is to replace an archive has to be on disk first: not while others wait."""
        old, new = (self.inodes.at(*place) for place in places)
        if old is None or new is None or old.is_folder:
            return
        if old.key[0] is Kind.RAW and new.key[0] is Kind.ARCHIVE:

            def sync(folder: int, entry: Entry) -> None:
                file = self.store.open(folder, entry)
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)

            with suppress(FUSEError):  # renaming will tell
                await self.at(old, sync)

    async def _rename(self, places: Sequence[tuple[Inode, bytes]], flags: int) -> bool:
        """Renames or exchanges; False if the names changed before the locks were there."""
        (old_folder, old), (new_folder, new) = places
        files = [self.inodes.at(*place) for place in places]
        async with AsyncExitStack() as held:
            if files[0] is None or any(file.is_folder for file in files if file):
                await held.enter_async_context(self.tree)
            plain = [file for file in files if file and not file.is_folder]
            await held.enter_async_context(self.changing(plain, [old_folder, new_folder]))
            if files != [self.inodes.at(*place) for place in places]:
                return False
            trails = [old_folder.trail(), new_folder.trail()]
            found = await on_disk(self._rename_on_disk, trails, old, new, flags)
            if flags & pyfuse3.RENAME_EXCHANGE:
                self.inodes.exchanged(old_folder, old, new_folder, new)
            else:
                self.inodes.moved(old_folder, old, new_folder, new)
            for file, watched in zip(files, found, strict=True):
                self._renamed_or_removed(file, watched)
            return True

    def _renamed_or_removed(self, file: Inode | None, watched: _Watched | None) -> None:
        if watched is None:
            return
        if file is not None:
            self.inodes.refresh(file, watched.status)
            if not file.places and self.watcher is not None:
                self.watcher.removed(file)
        if watched.descriptor is not None:
            if file is None:
                let_go(watched.descriptor)
            else:
                self.inodes.keep(file, watched.descriptor)

    def _rename_on_disk(
        self, trails: Sequence[list[Step]], old: bytes, new: bytes, flags: int
    ) -> list[_Watched | None]:
        """What was `old`, and what was `new`, as they are after it; None for what was not there."""
        changes = self.changes
        with self.store.folder(trails[0]) as here, self.store.folder(trails[1]) as there:

            def rename() -> None:
                if flags & pyfuse3.RENAME_EXCHANGE:
                    changes.exchange(here, old, there, new)
                else:
                    changes.rename(here, old, there, new, replace=not flags & pyfuse3.RENAME_NOREPLACE)

            # What is replaced has to stay within reach: its name is always there.
            return self._watch([(here, old), (there, new)], rename, keep=True)

    async def _remove(
        self, parent_inode: int, name: bytes, remove: Callable[[int, bytes], None], *, keep: bool
    ) -> None:
        folder = self.inodes[parent_inode]
        self.check_writing()
        attempt = partial(self._remove_from, folder, name, remove, keep)
        while not await self.steadily([folder], attempt):
            pass

    async def _remove_from(
        self, folder: Inode, name: bytes, remove: Callable[[int, bytes], None], keep: bool
    ) -> bool:
        """False if the name was another file's before the locks were there. `keep`: who has it open may go on
        with it."""
        file = self.inodes.at(folder, name)

        def remove_on_disk(trail: list[Step]) -> list[_Watched | None]:
            with self.store.folder(trail) as descriptor:
                return self._watch([(descriptor, name)], partial(remove, descriptor, name), keep=keep)

        async with self.changing([file] if file and not file.is_folder else [], [folder]):
            if file is not self.inodes.at(folder, name):
                return False
            (watched,) = await on_disk(remove_on_disk, folder.trail())
            self.inodes.unlinked(folder, name)
            self._renamed_or_removed(file, watched)
            return True

    def _unlink(self, folder: int, name: bytes) -> None:
        self.changes.remove(folder, name)

    def _rmdir(self, folder: int, name: bytes) -> None:
        os.rmdir(self.store.find(folder, name).file, dir_fd=folder)

    async def _make(
        self, parent_inode: int, name: bytes, make: Callable[[int], None], mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Something with a new name that is made in one step, and nothing else is known of."""
        folder = self.inodes[parent_inode]
        changes = self.changes
        owner = _Owner(ctx.uid, ctx.gid)

        def make_it(trail: list[Step]) -> Entry:
            with self.store.folder(trail) as descriptor:
                changes.check_free(descriptor, name)
                make(descriptor)
                made = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                given = owner.of_new(descriptor, made)
                if given is not None:
                    os.chown(name, *given, dir_fd=descriptor, follow_symlinks=False)
                    if mode & (stat.S_ISUID | stat.S_ISGID):  # which a change of owner takes away
                        os.chmod(name, mode & _MODE, dir_fd=descriptor)
                return self.store.find(descriptor, name)

        async def made() -> EntryAttributes:
            async with self.changing([], [folder]):
                entry = await on_disk(make_it, folder.trail())
                folder.version += 1
                return self.found(folder, entry)

        return await self.steadily([folder], made)

    def _create(
        self, trail: list[Step], name: bytes, access: int, mode: int, owner: _Owner
    ) -> tuple[int, Entry]:
        """A new file, open, that belongs to its owner; removed again if it cannot be made so."""
        with self.store.folder(trail) as folder:
            self.changes.check_free(folder, name)
            file = os.open(name, access | _CREATE, mode & _MODE, dir_fd=folder)
            try:
                given = owner.of_new(folder, os.fstat(file))
                if given is not None:
                    os.fchown(file, *given)
                    if mode & (stat.S_ISUID | stat.S_ISGID):
                        os.fchmod(file, mode & _MODE)
                return file, self.store.find(folder, name)
            except BaseException:
                os.close(file)
                os.unlink(name, dir_fd=folder)
                raise

    def _watch(
        self, places: Sequence[tuple[int, bytes]], change: Callable[[], None], *, keep: bool
    ) -> list[_Watched | None]:
        """Makes a change and tells what became of the files that had these names before."""
        with ExitStack() as held:
            files = [self._descriptor(folder, name) for folder, name in places]
            for file in files:
                if file is not None:
                    held.callback(os.close, file)
            change()
            found = [
                None if file is None else _Watched(os.fstat(file), file if keep else None) for file in files
            ]
            if keep:
                held.pop_all()
        statuses = [watched.status for watched in found if watched is not None]
        # The catalog need not know what is not there any more.
        self.writing.catalog.forget({(s.st_dev, s.st_ino) for s in statuses if s.st_nlink == 0})
        return found

    def _descriptor(self, folder: int, name: bytes) -> int | None:
        try:
            file = self.store.find(folder, name).file
        except FileNotFoundError:
            return None
        return os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)

    async def _make_raw(self, folder: Inode, name: bytes) -> None:
        entry = await self.look(folder, lambda descriptor: self.store.find(descriptor, name))
        file = self.inodes.assign(folder, entry)
        self.inodes.pin(file)
        try:
            await self.unpack(file)
        finally:
            self.inodes.unpin(file)
