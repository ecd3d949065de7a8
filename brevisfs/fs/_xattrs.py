"""Extended attributes: those of the backing file, and `user.brevisfs.*`, which tell about the mount.

The latter can be read but are never listed, because what copies attributes copies all that are listed.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pyfuse3
from pyfuse3 import FUSEError, RequestContext

from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import descriptor_path, on_disk
from brevisfs.fs._writing import Writing
from brevisfs.store import Entry, Step

T = TypeVar("T")

PREFIX = b"user.brevisfs."
_PRIVILEGED = b"trusted."
_CAPABILITY = b"security.capability"


class Xattrs(Writing):
    """getxattr, listxattr, setxattr, removexattr."""

    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext | None = None) -> bytes:
        file = self.inodes[inode]
        if name == _CAPABILITY and file.open:
            return self._capability(file)
        if not name.startswith(PREFIX):
            if self.reads.front.is_bare(inode):
                raise FUSEError(pyfuse3.ENOATTR)
            return await self._on_backing(file, lambda path: os.getxattr(path, name))
        asked = name.removeprefix(PREFIX)
        value = self._about_mount(asked) if file is self.inodes.root else await self._about_file(file, asked)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    async def listxattr(self, inode: int, ctx: RequestContext | None = None) -> Sequence[bytes]:
        file = self.inodes[inode]
        if self.reads.front.is_bare(inode):
            return []
        names = await self._on_backing(file, os.listxattr)
        hidden = (PREFIX,) if ctx is None or ctx.uid == 0 else (PREFIX, _PRIVILEGED)
        return [name for name in map(os.fsencode, names) if not name.startswith(hidden)]

    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: RequestContext | None = None
    ) -> None:
        if name == PREFIX + b"recompression" and self.inodes[inode] is self.inodes.root:
            self._command(value)
        else:
            await self._change_attribute(inode, name, lambda path: os.setxattr(path, name, value))

    def _command(self, what: bytes) -> None:
        self.check_writing()
        try:
            if self.watcher is not None:
                self.watcher.command(what)
        except ValueError:
            raise FUSEError(errno.EINVAL) from None

    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext | None = None) -> None:
        await self._change_attribute(inode, name, lambda path: os.removexattr(path, name))

    async def _change_attribute(self, inode: int, name: bytes, change: Callable[[str], None]) -> None:
        file = self.inodes[inode]
        self.check_writing()
        if name.startswith(PREFIX):
            raise FUSEError(errno.EPERM)
        file.no_capability = False
        await self.change_metadata(file, change)
        self.reads.front.bare([inode], 0)

    async def change_metadata(self, file: Inode, change: Callable[[str], None]) -> None:
        """Makes a change of metadata on a path that leads to the backing file."""
        if file.is_folder and (file.places or file is self.inodes.root):
            await self.steadily([file], partial(self._change_folder, file, change))
            return

        def change_and_look(path: str) -> os.stat_result:
            change(path)
            return os.stat(path)

        async with file.lock:
            self.inodes.refresh(file, await self._on_backing(file, change_and_look, holding=True))

    async def _change_folder(self, folder: Inode, change: Callable[[str], None]) -> None:
        """With the folder's lock held: who changes what is in it unseen puts the times of before back."""

        def change_it(trail: list[Step]) -> None:
            with self.store.folder(trail) as descriptor:
                change(descriptor_path(descriptor))

        async with self.changing([], [folder]):
            await on_disk(change_it, folder.trail())
            # What a listing has just seen of the folder is not to be remembered.
            self.inodes.outdate(folder)

    def _capability(self, file: Inode) -> bytes:
        """The kernel asks for this one before every write, and a file hardly ever has it."""
        if not file.no_capability:
            try:
                return os.getxattr(file.open[-1].file, _CAPABILITY)
            except OSError as error:
                file.no_capability = error.errno == errno.ENODATA
        raise FUSEError(errno.ENODATA)

    def _about_mount(self, asked: bytes) -> bytes | None:
        match asked:
            case b"pid":
                return b"%d" % os.getpid()
            case b"store":
                return os.fsencode(self.store.path)
            case b"stats":
                return json.dumps(self.statistics()).encode()
            case b"recompression":
                return None if self.watcher is None else json.dumps(self.watcher.status()).encode()
        return None

    def statistics(self) -> dict[str, int]:
        """What the mount has done and holds, as numbers."""
        return {
            **self.reads.counters(),
            "index_bytes": self.backings.memory,
            "open_files": len(self.backings),
            "inodes": len(self.inodes),
            "stray_exceptions": self.stray,
        }

    async def _about_file(self, inode: Inode, asked: bytes) -> bytes | None:
        entry = await self.entry_of(inode)
        if not stat.S_ISREG(entry.status.st_mode):
            return None
        match asked:
            case b"state":
                return entry.kind.value.encode()
            case b"stored":
                return b"%d" % entry.status.st_size
            case b"original":
                return b"%d" % entry.size
        return None

    async def _on_backing(self, inode: Inode, call: Callable[[str], T], *, holding: bool = False) -> T:
        """Makes a call on a path that leads to this very backing file and follows no symlink."""
        if inode.open:
            with self.backings.held(inode.open[-1]) as backing:
                return await on_disk(call, descriptor_path(backing.file))
        if inode is self.inodes.root:
            return await on_disk(call, descriptor_path(self.store.root))

        def on_entry(folder: int, entry: Entry) -> T:
            file = os.open(entry.file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                return call(descriptor_path(file))
            finally:
                os.close(file)

        return await self.on_file(inode, on_entry, call, holding=holding)
