"""What the handlers of all topics stand on."""

import errno
import os
from collections.abc import Callable
from itertools import count
from typing import Generic, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import FUSEError

from brevisfs.fs._backing import Backings
from brevisfs.fs._cache import ExtentCache
from brevisfs.fs._inodes import Inode, Inodes, key_of
from brevisfs.store import Entry, Identity, Kind, Step, Store

P = ParamSpec("P")
T = TypeVar("T")


async def on_disk(call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Makes a blocking call in a thread; an OSError becomes the answer to the request."""
    try:
        return await trio.to_thread.run_sync(lambda: call(*arguments, **keywords))
    except OSError as error:
        raise FUSEError(error.errno or errno.EIO) from error


class Handles(Generic[T]):
    """What open handles stand for, by number. No number is given twice."""

    def __init__(self) -> None:
        self._open: dict[int, T] = {}
        self._numbers = count(1)

    def add(self, what: T) -> int:
        number = next(self._numbers)
        self._open[number] = what
        return number

    def __getitem__(self, number: int) -> T:
        try:
            return self._open[number]
        except KeyError:
            raise FUSEError(errno.EBADF) from None

    def pop(self, number: int) -> T:
        handle = self[number]
        del self._open[number]
        return handle


class State(pyfuse3.Operations):
    """The store being served and what is in use of it."""

    enable_acl = True

    def __init__(self, store: Store, backings: Backings, cache: ExtentCache) -> None:
        super().__init__()
        self.store = store
        self.backings = backings
        self.cache = cache
        self.stray = 0
        self.inodes = Inodes(_root(store))

    def find(self, trail: list[Step], name: bytes) -> Entry:
        """What a folder has under a name now. Blocks; raises OSError."""
        with self.store.folder(trail) as folder:
            return self.store.find(folder, name)

    async def at(self, inode: Inode, use: Callable[[int, Entry], T]) -> T:
        """Calls `use(folder, entry)` in a thread, with what the inode stands for, looked at anew.

        ESTALE, upon which the kernel looks the name up again, if another file has its name by now.
        """
        trail, name = inode.place()

        def look_and_use() -> T:
            with self.store.folder(trail) as folder:
                entry = self.store.find(folder, name)
                if not inode.is_meant_by(entry):
                    raise OSError(errno.ESTALE, "the file was replaced", name)
                return use(folder, entry)

        return await on_disk(look_and_use)

    async def entry_of(self, inode: Inode) -> Entry:
        """What the inode stands for, as `at`."""
        return await self.at(inode, lambda _, entry: entry)


def _root(store: Store) -> Inode:
    status = os.fstat(store.root)
    entry = Entry(b"", b"", Kind.RAW, status.st_size, status)
    return Inode(pyfuse3.ROOT_INODE, None, b"", key_of(entry), Identity.of(status), is_folder=True)
