"""Listing folders."""

import errno
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyfuse3
from pyfuse3 import EntryAttributes, FUSEError, ReaddirToken, RequestContext

from brevisfs.fs._attributes import Attributes
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import Handles, on_disk
from brevisfs.store import Entry, Step, sync_folder

# How many entries are looked at anew at a time.
_AHEAD = 128


@dataclass(slots=True)
class Listing:
    """An open folder, and what it had when its listing was begun; `version` is the folder's at that time,
    `since` the count of unnoticed changes."""

    folder: Inode
    entries: list[Entry]
    version: int = 0
    since: int = 0


class Folders(Attributes):
    """opendir, readdir, releasedir, fsyncdir."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.listings: Handles[Listing] = Handles()

    async def opendir(self, inode: int, ctx: RequestContext | None = None) -> int:
        folder = self.inodes[inode]
        folder.trail()  # ESTALE if it is gone: the kernel looks for another one of that name
        return self.listings.add(Listing(folder, []))

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        listing = self.listings[fh]
        folder = listing.folder
        if not folder.places and folder is not self.inodes.root:
            raise FUSEError(errno.ENOENT)
        if start_id == 0:
            listing.since = self.unnoticed_ever
            listing.entries = await self.look(folder, self.store.entries)
            listing.version = folder.version
        dots = [(b".", folder), (b"..", folder.parent or folder)]
        for place, (name, inode) in enumerate(dots[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, _dot(inode), place):
                return
        done = max(0, start_id - len(dots))
        current = await self._current(listing, done)
        self._reply(listing, token, enumerate(current, done + len(dots) + 1))

    def _reply(
        self, listing: Listing, token: ReaddirToken, entries: Iterable[tuple[int, Entry | None]]
    ) -> None:
        """Replies with entries, each with its place, as long as there is room."""
        known: dict[bool, list[int]] = {True: [], False: []}
        for place, entry in entries:
            if entry is None:
                continue
            inode = self.inodes.assign(listing.folder, entry)
            # What is open may have been written to since it was looked at.
            answer = self.of_open(inode) if inode.open else self.attributes(inode, entry.status, entry.size)
            if entry.is_folder:
                answer = self.doubt(answer, listing.since)
            if not pyfuse3.readdir_reply(token, entry.name, answer, place):
                self.inodes.forget([(inode.number, 0)])
                break
            inode.lookups += 1
            known[entry.bare].append(inode.number)
        for bare, inodes in known.items():
            self.know_bare(inodes, bare=bare)

    async def releasedir(self, fh: int) -> None:
        self.listings.pop(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        folder = self.listings[fh].folder
        if folder.places or folder is self.inodes.root:  # else it was removed
            await on_disk(self._sync, folder.trail())

    async def _current(self, listing: Listing, done: int) -> Sequence[Entry | None]:
        """The entries after the first `done`, as they are now; None for what is gone."""
        if listing.folder.version == listing.version:
            return listing.entries[done:]
        names = [entry.name for entry in listing.entries[done : done + _AHEAD]]

        def find_all(folder: int) -> list[Entry | None]:
            return [self._find(folder, name) for name in names]

        return await self.look(listing.folder, find_all)

    def _find(self, folder: int, name: bytes) -> Entry | None:
        try:
            return self.store.find(folder, name)
        except FileNotFoundError:
            return None

    def _sync(self, trail: list[Step]) -> None:
        with self.store.folder(trail) as folder:
            sync_folder(folder)


def _dot(inode: Inode) -> EntryAttributes:
    # The kernel takes no more than number and type from these two, and counts no lookup for them.
    entry = EntryAttributes()
    entry.st_ino = inode.number
    entry.st_mode = stat.S_IFDIR
    return entry
