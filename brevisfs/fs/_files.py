"""Opening and reading files."""

import errno
import logging
import os
from dataclasses import dataclass
from typing import Any

from pyfuse3 import FileInfo, FUSEError, RequestContext

from brevisfs.errors import BrevisError
from brevisfs.fs._backing import Backing
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import Handles, State, holding, on_disk
from brevisfs.store import Entry, Identity, Kind, read_whole

log = logging.getLogger("brevisfs.fs")


@dataclass(slots=True, eq=False)
class OpenFile:
    """A handle's file, and its backing file now. `writable`: the handle was opened to write."""

    inode: Inode
    backing: Backing
    writable: bool = False


class Files(State):
    """open, read and release of handles that only read."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.files: Handles[OpenFile] = Handles()

    async def open(self, inode: int, flags: int, ctx: RequestContext | None = None) -> FileInfo:
        file = self.inodes[inode]
        async with holding(file.lock):
            return self.opened(file, await self._adopt(await self._reopen(file)))

    def opened(self, file: Inode, backing: Backing, *, writable: bool = False) -> FileInfo:
        """A new handle of a file. The caller holds the inode's lock, and gives the backing away."""
        unchanged = file.opened in (None, backing.identity)
        file.open.append(backing)
        file.opened = backing.identity
        number = self.files.add(OpenFile(file, backing, writable))
        self.reads.front.answer(number, backing.front_file)
        return FileInfo(fh=number, keep_cache=unchanged)

    def give_backing(self, file: Inode, backing: Backing) -> None:
        """Moves all handles of a file to another backing file of it, which the caller gives away."""
        for number, handle in self.files.all():
            if handle.inode is file:
                backing.users += 1
                self.reads.front.answer(number, backing.front_file)
                self.backings.release(handle.backing)
                handle.backing = backing
        file.open = [backing] * len(file.open)
        self.backings.release(backing)

    # Of what the front does not answer. pyfuse3 takes any buffer, and a view saves the copy.
    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:  # type: ignore[override]
        # The handle may get another backing file meanwhile.
        backing = self.files[fh].backing
        backing.users += 1
        try:
            if backing.reader is not None:
                return await self.reads.read(backing, off, size)
            # A short answer would end the file for the kernel.
            return await on_disk(read_whole, backing.file, size, off)
        finally:
            self.backings.release(backing)

    async def release(self, fh: int) -> None:
        file = self.files.pop(fh)
        self.reads.front.answer(fh, None)
        file.inode.open.remove(file.backing)
        self.backings.release(file.backing)

    async def _reopen(self, file: Inode) -> Backing:
        """The file's backing file, opened again for reading. The caller holds the inode's lock."""
        if (known := self._reopen_at_once(file)) is not None:
            return known
        return await self.on_file(
            file, self._open_backing, lambda path: self.open_nameless(file, path, os.O_RDONLY), holding=True
        )

    def _reopen_at_once(self, file: Inode) -> Backing | None:
        """As _reopen, of a file that is as it was found, if the kernel has all in memory that tells."""
        if not file.places or file.places[-1][0].is_changing:
            return None
        folder, name = file.places[-1]
        kind = file.key[0]
        reopened = self.store.reopen(folder.trail(), name, kind, file.identity)
        return None if reopened is None else _backing(reopened[1], kind, file.identity, reopened[0])

    def open_nameless(self, file: Inode, path: str, access: int) -> Backing:
        """As _open_backing, of a file that has lost its last name."""
        opened = os.open(path, access | os.O_CLOEXEC)
        return Backing("a removed file", file.key[0], Identity.of(os.fstat(opened)), opened)

    def _open_backing(self, folder: int, entry: Entry) -> Backing:
        # Opened for reading and nothing else, whatever flags the caller's own open has.
        return _backing(entry.file, entry.kind, entry.identity, self.store.open(folder, entry))

    async def _adopt(self, opened: Backing) -> Backing:
        try:
            return await self.backings.adopt(opened)
        except (BrevisError, OSError) as error:
            log.error("%s: %s", opened.name, error)
            raise FUSEError(errno.EIO) from None


def _backing(file: bytes, kind: Kind, identity: Identity, opened: int) -> Backing:
    return Backing(file.decode("utf-8", "backslashreplace"), kind, identity, opened)
