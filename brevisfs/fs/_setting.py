"""Setting attributes."""

import os

from pyfuse3 import EntryAttributes, RequestContext, SetattrFields

from brevisfs.fs._attributes import Attributes
from brevisfs.fs._xattrs import Xattrs


class Setting(Xattrs, Attributes):
    """setattr."""

    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        file = self.inodes[inode]
        self.check_writing()
        if fields.update_size:
            self.check_writable(file)
            self.begin_change(file)
            try:
                await self.resize(file, attr.st_size, fh)
            finally:
                self.end_change(file)
        change = _change(attr, fields)
        if change is not None:
            await self.change_metadata(file, change)
        return await self._attributes(file)


class _Change:
    """Owner, mode and times to be set on a path."""

    def __init__(self, attr: EntryAttributes, fields: SetattrFields) -> None:
        self.user = attr.st_uid if fields.update_uid else -1
        self.group = attr.st_gid if fields.update_gid else -1
        self.mode = attr.st_mode & 0o7777 if fields.update_mode else None
        self.accessed = attr.st_atime_ns if fields.update_atime else None
        self.modified = attr.st_mtime_ns if fields.update_mtime else None

    def __call__(self, path: str) -> None:
        # In this order: a change of owner takes bits of the mode away.
        if (self.user, self.group) != (-1, -1):
            os.chown(path, self.user, self.group)
        if self.mode is not None:
            os.chmod(path, self.mode)
        if self.accessed is not None or self.modified is not None:
            status = os.stat(path)
            accessed = status.st_atime_ns if self.accessed is None else self.accessed
            modified = status.st_mtime_ns if self.modified is None else self.modified
            os.utime(path, ns=(accessed, modified))


def _change(attr: EntryAttributes, fields: SetattrFields) -> _Change | None:
    wanted = (
        fields.update_uid,
        fields.update_gid,
        fields.update_mode,
        fields.update_atime,
        fields.update_mtime,
    )
    return _Change(attr, fields) if any(wanted) else None
