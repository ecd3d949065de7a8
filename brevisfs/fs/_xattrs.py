"""Extended attributes: those of the backing file, and `user.brevisfs.*`, which tell about the mount.

The latter can be read but are never listed, because what copies attributes copies all that are listed.
"""

import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

import pyfuse3
from pyfuse3 import FUSEError, RequestContext

from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import State, on_disk
from brevisfs.store import Entry

T = TypeVar("T")

PREFIX = b"user.brevisfs."
_PRIVILEGED = b"trusted."


class Xattrs(State):
    """getxattr, listxattr."""

    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext | None = None) -> bytes:
        file = self.inodes[inode]
        if not name.startswith(PREFIX):
            return await self._on_backing(file, lambda path: os.getxattr(path, name))
        asked = name.removeprefix(PREFIX)
        value = self._about_mount(asked) if file is self.inodes.root else await self._about_file(file, asked)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    async def listxattr(self, inode: int, ctx: RequestContext | None = None) -> Sequence[bytes]:
        names = await self._on_backing(self.inodes[inode], os.listxattr)
        hidden = (PREFIX,) if ctx is None or ctx.uid == 0 else (PREFIX, _PRIVILEGED)
        return [name for name in map(os.fsencode, names) if not name.startswith(hidden)]

    def _about_mount(self, asked: bytes) -> bytes | None:
        match asked:
            case b"pid":
                return b"%d" % os.getpid()
            case b"store":
                return os.fsencode(self.store.path)
            case b"stats":
                return json.dumps(self.statistics()).encode()
        return None

    def statistics(self) -> dict[str, int]:
        """What the mount has done and holds, as numbers."""
        return {
            **asdict(self.cache.counters),
            "cached_bytes": self.cache.held,
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

    async def _on_backing(self, inode: Inode, call: Callable[[str], T]) -> T:
        """Makes a call on a path that leads to this very backing file and follows no symlink."""
        if inode.open:
            with self.backings.held(inode.open[-1]) as backing:
                return await on_disk(call, _path(backing.file))
        if inode.parent is None:
            return await on_disk(call, _path(self.store.root))

        def on_entry(folder: int, entry: Entry) -> T:
            file = os.open(entry.file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                return call(_path(file))
            finally:
                os.close(file)

        return await self.at(inode, on_entry)


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
