"""Names and attributes."""

import errno
import os
import stat
import time
from collections.abc import Sequence

from pyfuse3 import EntryAttributes, FUSEError, RequestContext, StatvfsData

from brevisfs.fs._inodes import Inode
from brevisfs.fs._state import State, on_disk
from brevisfs.store import Entry

# How long the kernel may take a name and attributes for granted: the time in which a change made
# in the store itself shows.
SECONDS = 1


class Attributes(State):
    """lookup, forget, getattr, readlink, statfs."""

    def attributes(
        self, inode: Inode, status: os.stat_result, size: int, seconds: float = SECONDS
    ) -> EntryAttributes:
        """The attributes of a file `size` bytes long whose backing file has `status`, for so many seconds."""
        entry = EntryAttributes()
        entry.st_ino = inode.number
        entry.entry_timeout = entry.attr_timeout = seconds
        entry.st_mode = status.st_mode
        entry.st_nlink = status.st_nlink
        entry.st_uid = status.st_uid
        entry.st_gid = status.st_gid
        entry.st_rdev = status.st_rdev
        entry.st_size = size
        entry.st_blksize = status.st_blksize
        # Archivers take a file without blocks for one without bytes.
        entry.st_blocks = status.st_blocks or int(stat.S_ISREG(status.st_mode) and size > 0)
        entry.st_atime_ns = status.st_atime_ns
        entry.st_mtime_ns = status.st_mtime_ns
        entry.st_ctime_ns = self.shown_ctime(status)
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: RequestContext | None = None
    ) -> EntryAttributes:
        folder = self.inodes[parent_inode]
        if name in (b".", b".."):
            return await self._lookup_again(folder if name == b"." else folder.parent or folder)
        since, begun = self.folder_changes, time.time_ns()
        entry = self._known(folder, name)
        if entry is None:
            entry = await self.look(folder, lambda descriptor: self.store.find(descriptor, name))
        answer = self.doubt(self.found(folder, entry), since)
        if entry.was_settled(begun):
            inode = self.inodes[answer.st_ino]
            inode.looked, inode.bare = entry.identity, entry.bare
        return answer

    def _known(self, folder: Inode, name: bytes) -> Entry | None:
        """What has been looked up before, if the kernel has in memory that it is as it was.

        Raises ENOENT if it has that nothing has the name.
        """
        if folder.is_changing:
            return None
        try:
            entry = self.store.find_at_once(folder.trail(), name)
        except FileNotFoundError:
            raise FUSEError(errno.ENOENT) from None
        inode = self.inodes.at(folder, name)
        if entry is None or inode is None or inode.looked != entry.identity or not inode.is_meant_by(entry):
            return None
        return entry._replace(bare=inode.bare)

    def found(self, folder: Inode, entry: Entry) -> EntryAttributes:
        """The answer to a request that has found or made a name: the kernel counts one look-up more."""
        inode = self.inodes.assign(folder, entry)
        self.know_bare([inode.number], bare=entry.bare)
        inode.lookups += 1
        return self.attributes(inode, entry.status, entry.size)

    def doubt(self, answer: EntryAttributes, since: int) -> EntryAttributes:
        """The answer, which the kernel is not to keep if it is of a folder and has perhaps times of before a
        change, or of which nobody is to know: looking began when `folder_changes` was `since`.
        """
        if stat.S_ISDIR(answer.st_mode) and (self.unnoticed_now or self.folder_changes != since):
            answer.attr_timeout = 0
        return answer

    def know_bare(self, inodes: Sequence[int], *, bare: bool, seconds: float = SECONDS) -> None:
        """Files were found to have no extended attributes, or were not: which holds as attributes do."""
        self.reads.front.bare(inodes, round(seconds * 10**9) if bare else 0)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.inodes.forget(inode_list)

    async def getattr(self, inode: int, ctx: RequestContext | None = None) -> EntryAttributes:
        return await self._attributes(self.inodes[inode])

    async def readlink(self, inode: int, ctx: RequestContext | None = None) -> bytes:
        return await self.at(self.inodes[inode], _readlink)

    async def statfs(self, ctx: RequestContext | None = None) -> StatvfsData:
        backing = await on_disk(os.statvfs, self.store.root)
        answer = StatvfsData()
        for name in _STATVFS:
            setattr(answer, name, getattr(backing, name))
        return answer

    async def _attributes(self, inode: Inode) -> EntryAttributes:
        while True:
            await self.quiet(inode)
            if inode.open:
                return self.of_open(inode)
            version = inode.version
            if inode is self.inodes.root:
                root = self.store.root
                status = os.fstat(root) if self.store.is_at_once else await on_disk(os.fstat, root)
                size = status.st_size
            else:
                entry = await self.entry_of(inode)
                status, size = entry.status, entry.size
            # A folder's times are put back after some changes of what is in it.
            if not inode.is_folder or (inode.version == version and not inode.is_changing):
                return self.attributes(inode, status, size)

    def of_open(self, inode: Inode, seconds: float = SECONDS) -> EntryAttributes:
        """As attributes, of a file that is open. The kernel has them in memory: this does not wait."""
        backing = inode.open[-1]
        status = os.fstat(backing.file)
        size = status.st_size if backing.reader is None else backing.reader.size
        return self.attributes(inode, status, size, seconds)

    async def _lookup_again(self, inode: Inode) -> EntryAttributes:
        if inode.parent is not None:
            inode = self.inodes.assign(inode.parent, await self.entry_of(inode))
        found = await self._attributes(inode)
        inode.lookups += 1
        return found


def _readlink(folder: int, entry: Entry) -> bytes:
    return os.readlink(entry.file, dir_fd=folder)


_STATVFS = (
    "f_bsize",
    "f_frsize",
    "f_blocks",
    "f_bfree",
    "f_bavail",
    "f_files",
    "f_ffree",
    "f_favail",
    "f_namemax",
)
