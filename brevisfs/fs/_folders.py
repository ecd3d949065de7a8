"""Listing folders."""

import stat
from dataclasses import dataclass
from typing import Any

import pyfuse3
from pyfuse3 import EntryAttributes, ReaddirToken, RequestContext

from brevisfs.fs._attributes import attributes
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import Handles, State, on_disk
from brevisfs.store import Entry, Step


@dataclass(slots=True)
class Listing:
    """An open folder, and what it had when its listing was begun."""

    folder: Inode
    entries: list[Entry]


class Folders(State):
    """opendir, readdir, releasedir, fsyncdir."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.listings: Handles[Listing] = Handles()

    async def opendir(self, inode: int, ctx: RequestContext | None = None) -> int:
        return self.listings.add(Listing(self.inodes[inode], []))

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        listing = self.listings[fh]
        folder = listing.folder
        if start_id == 0:
            listing.entries = await on_disk(self._entries, folder.trail())
        dots = [(b".", folder), (b"..", folder.parent or folder)]
        for place, (name, inode) in enumerate(dots[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, _dot(inode), place):
                return
        done = max(0, start_id - len(dots))
        for place, entry in enumerate(listing.entries[done:], done + len(dots) + 1):
            inode = self.inodes.assign(folder, entry)
            if not pyfuse3.readdir_reply(
                token, entry.name, attributes(inode, entry.status, entry.size), place
            ):
                self.inodes.forget([(inode.number, 0)])
                return
            inode.lookups += 1

    async def releasedir(self, fh: int) -> None:
        self.listings.pop(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        pass

    def _entries(self, trail: list[Step]) -> list[Entry]:
        with self.store.folder(trail) as folder:
            return self.store.entries(folder)


def _dot(inode: Inode) -> EntryAttributes:
    # The kernel takes no more than number and type from these two, and counts no lookup for them.
    entry = EntryAttributes()
    entry.st_ino = inode.number
    entry.st_mode = stat.S_IFDIR
    return entry
