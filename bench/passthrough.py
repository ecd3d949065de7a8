"""The bare pass-through mount that reads through a mount are compared with: `passthrough SOURCE MOUNTPOINT`.

As little pyfuse3 as shows a folder: every request is answered on the loop with one system call, without
threads, guards or a cache of its own. What it takes is the price of FUSE itself. Read only. It prints a
line once it answers, and ends when it is unmounted.
"""

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext

from brevisfs.fs._tuning import tune

_SECONDS = 1


class PassThrough(pyfuse3.Operations):
    """A folder as it is."""

    enable_acl = True

    def __init__(self, source: Path) -> None:
        super().__init__()
        self._paths: dict[int, bytes] = {pyfuse3.ROOT_INODE: os.fsencode(source)}
        self._listings: dict[int, list[tuple[bytes, bytes]]] = {}

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: RequestContext | None = None
    ) -> EntryAttributes:
        return self._found(os.path.join(self._paths[parent_inode], name))

    async def forget(self, inode_list: Iterable[tuple[int, int]]) -> None:
        pass

    async def getattr(self, inode: int, ctx: RequestContext | None = None) -> EntryAttributes:
        entry = self._found(self._paths[inode])
        entry.st_ino = inode
        return entry

    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext | None = None) -> bytes:
        try:
            return os.getxattr(self._paths[inode], name, follow_symlinks=False)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None

    async def listxattr(self, inode: int, ctx: RequestContext | None = None) -> Sequence[bytes]:
        return [os.fsencode(name) for name in os.listxattr(self._paths[inode], follow_symlinks=False)]

    async def opendir(self, inode: int, ctx: RequestContext | None = None) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        folder = self._paths[fh]
        if start_id == 0:
            self._listings[fh] = [(name, os.path.join(folder, name)) for name in os.listdir(folder)]
        for place, (name, path) in enumerate(self._listings[fh][start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._found(path), place):
                return

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    async def open(self, inode: int, flags: int, ctx: RequestContext | None = None) -> FileInfo:
        return FileInfo(fh=os.open(self._paths[inode], os.O_RDONLY), keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        os.close(fh)

    def _found(self, path: bytes) -> EntryAttributes:
        try:
            status = os.lstat(path)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        self._paths[status.st_ino] = path
        entry = EntryAttributes()
        entry.entry_timeout = entry.attr_timeout = _SECONDS
        for name in _STATUS:
            setattr(entry, name, getattr(status, name))
        return entry


_STATUS = (
    "st_ino",
    "st_mode",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_rdev",
    "st_size",
    "st_blksize",
    "st_blocks",
    "st_atime_ns",
    "st_mtime_ns",
    "st_ctime_ns",
)


async def _serve(mountpoint: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        tune((await trio.to_thread.run_sync(os.stat, mountpoint)).st_dev)
        print("answers", flush=True)


def main(source: str, mountpoint: str) -> None:
    """Serves until the mount is ended."""
    pyfuse3.init(PassThrough(Path(source)), mountpoint, {"default_permissions", "fsname=passthrough", "ro"})
    try:
        trio.run(_serve, mountpoint)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
