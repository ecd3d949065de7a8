"""Listing folders."""

import errno
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError, ReaddirToken, RequestContext

from brevisfs.fs._attributes import SECONDS, Attributes
from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import Handles, on_disk
from brevisfs.store import Entry, Step, sync_folder

# How many entries are looked at anew at a time, and after how many seconds. The kernel may take them for
# granted for what is left of the time that a look counts.
_AHEAD = 128
_OLD = SECONDS / 2


@dataclass(slots=True)
class Listing:
    """An open folder, and the names that it had when its listing was begun. `entries` is what the names after
    the first `done` stood for, None for nothing, when the folder's version was `version`. The look began at
    the time `looked` of trio's clock, when `State.folder_changes` was `since`."""

    folder: Inode
    names: Sequence[bytes] = ()
    entries: Sequence[Entry | None] = ()
    done: int = 0
    version: int = 0
    looked: float = 0.0
    since: int = 0

    def is_recent(self, done: int) -> bool:
        """Whether what comes after the first `done` need not be looked at."""
        if self.folder.version != self.version or trio.current_time() - self.looked >= _OLD:
            return False
        return self.done <= done < self.done + len(self.entries)


class Folders(Attributes):
    """opendir, readdir, releasedir, fsyncdir."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.listings: Handles[Listing] = Handles()

    async def opendir(self, inode: int, ctx: RequestContext | None = None) -> int:
        folder = self.inodes[inode]
        folder.trail()  # ESTALE if it is gone: the kernel looks for another one of that name
        return self.listings.add(Listing(folder))

    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        listing = self.listings[fh]
        folder = listing.folder
        if not folder.places and folder is not self.inodes.root:
            raise FUSEError(errno.ENOENT)
        if start_id == 0:
            await self._look_at(listing, 0, self.store.entries)
            listing.names = [entry.name for entry in listing.entries if entry is not None]
        dots = [(b".", folder), (b"..", folder.parent or folder)]
        for place, (name, inode) in enumerate(dots[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, _dot(inode), place):
                return
        done = max(0, start_id - len(dots))
        current = await self._current(listing, done)
        self._reply(listing, token, [(place + len(dots), entry) for place, entry in current])

    def _reply(self, listing: Listing, token: ReaddirToken, entries: Iterable[tuple[int, Entry]]) -> None:
        """Replies with entries, each with its place, as long as there is room."""
        known: dict[bool, list[int]] = {True: [], False: []}
        left = max(0.0, listing.looked + SECONDS - trio.current_time())
        for place, entry in entries:
            inode = self.inodes.assign(listing.folder, entry)
            if inode.open:  # it may have been written to since it was looked at
                answer = self.of_open(inode, left)
            else:
                answer = self.attributes(inode, entry.status, entry.size, left)
            if entry.is_folder:
                answer = self.doubt(answer, listing.since)
            if not pyfuse3.readdir_reply(token, entry.name, answer, place):
                self.inodes.forget([(inode.number, 0)])
                break
            inode.lookups += 1
            known[entry.bare].append(inode.number)
        for bare, inodes in known.items():
            self.know_bare(inodes, bare=bare, seconds=left)

    async def releasedir(self, fh: int) -> None:
        self.listings.pop(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        folder = self.listings[fh].folder
        if folder.places or folder is self.inodes.root:  # else it was removed
            await on_disk(self._sync, folder.trail())

    async def _current(self, listing: Listing, done: int) -> list[tuple[int, Entry]]:
        """Some of the entries after the first `done`, as they are now, with their places; none at the end."""
        while done < len(listing.names):
            if not listing.is_recent(done):
                names = listing.names[done : done + _AHEAD]
                await self._look_at(listing, done, partial(self.store.find_all, names=names))
            first = done - listing.done
            seen = listing.entries[first : first + _AHEAD]
            found = [(place, entry) for place, entry in enumerate(seen, done + 1) if entry is not None]
            if found:
                return found
            done += len(seen)
        return []

    async def _look_at(
        self, listing: Listing, done: int, look: Callable[[int], Sequence[Entry | None]]
    ) -> None:
        looked, since = trio.current_time(), self.folder_changes
        listing.entries = await self.look(listing.folder, look)
        listing.done, listing.version = done, listing.folder.version
        listing.looked, listing.since = looked, since

    def _sync(self, trail: list[Step]) -> None:
        with self.store.folder(trail) as folder:
            sync_folder(folder)


def _dot(inode: Inode) -> EntryAttributes:
    # The kernel takes no more than number and type from these two, and counts no lookup for them.
    entry = EntryAttributes()
    entry.st_ino = inode.number
    entry.st_mode = stat.S_IFDIR
    return entry
