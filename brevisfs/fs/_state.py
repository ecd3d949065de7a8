"""What the handlers of all topics stand on."""

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Generic, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import FUSEError

from brevisfs.fs._backing import let_go
from brevisfs.fs._inodes import Inode, Inodes
from brevisfs.fs._reads import Reads
from brevisfs.store import Changes, Entry, Identity, Kind, Session, Step, Store

P = ParamSpec("P")
T = TypeVar("T")


async def on_disk(call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Makes a blocking call in a thread; an OSError becomes the answer to the request."""
    try:
        return await trio.to_thread.run_sync(lambda: call(*arguments, **keywords))
    except OSError as error:
        raise FUSEError(error.errno or errno.EIO) from error


@asynccontextmanager
async def holding(lock: trio.Lock) -> AsyncIterator[None]:
    """Holds a lock for the time of the block; one that is free without a turn of the event loop."""
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


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

    def all(self) -> Iterable[tuple[int, T]]:
        return self._open.items()


class State(pyfuse3.Operations):
    """The store being served and what is in use of it. A read-only mount is not `writable`."""

    enable_acl = True

    def __init__(self, store: Store, reads: Reads, writable: Session | None = None) -> None:
        super().__init__()
        self.store = store
        self.reads = reads
        self.backings = reads.backings
        self.writable = writable
        self.stray = 0
        self.unnoticed_now = self.folder_changes = 0
        self.tree = trio.Lock()
        """Held while a folder is renamed, and by who needs all folders to stay; taken before other locks."""
        self.inodes = Inodes(_root(store))

    @property
    def changes(self) -> Changes:
        """Raises EROFS if the mount is read-only."""
        return self.writing.changes

    @property
    def writing(self) -> Session:
        """Raises EROFS if the mount is read-only."""
        self.check_writing()
        assert self.writable is not None
        return self.writable

    def check_writing(self) -> None:
        """Raises EROFS if the mount is read-only."""
        if self.writable is None:
            raise FUSEError(errno.EROFS)

    def shown_ctime(self, status: os.stat_result) -> int:
        """The ctime to show of a backing file, in ns."""
        return status.st_ctime_ns if self.writable is None else self.writable.catalog.shown_ctime(status)

    @asynccontextmanager
    async def changing(self, files: Iterable[Inode | None], folders: Iterable[Inode]) -> AsyncIterator[None]:
        """Keeps everybody else from changing what the files are, and the names in the folders.

        Always takes the locks in the same order, so that no two can wait for each other.
        """
        changed: list[Inode] = []
        async with AsyncExitStack() as held:
            for inodes in (files, folders):
                for inode in sorted({inode for inode in inodes if inode}, key=lambda inode: inode.number):
                    await held.enter_async_context(inode.lock)
                    changed.append(inode)
            try:
                for inode in changed:
                    inode.is_changing = True
                yield
            finally:
                self.folder_changes += 1
                for inode in changed:
                    inode.is_changing = False

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """While names are changed of which a folder's times must not tell: see `Attributes.doubt`."""
        self.unnoticed_now += 1
        self.folder_changes += 1
        try:
            yield
        finally:
            self.unnoticed_now -= 1
            self.folder_changes += 1

    async def quiet(self, inode: Inode) -> None:
        """Waits until nobody is changing the inode: as a folder its names, as a file what it is."""
        while inode.is_changing:
            async with inode.lock:
                pass

    async def look(self, folder: Inode, look: Callable[[int], T]) -> T:
        """Calls `look` with a descriptor of the folder, in a thread; looks again if names in the folder, or
        what is known of its files, were changed meanwhile. So the entries seen can be bound to inodes.
        """
        while True:
            await self.quiet(folder)
            before = folder.version, self.inodes.moves
            trail = folder.trail()

            def look_there(trail: list[Step] = trail) -> T:
                with self.store.folder(trail) as descriptor:
                    return look(descriptor)

            try:
                seen = await on_disk(look_there)
            except FUSEError:
                unchanged = before == (folder.version, self.inodes.moves) and folder.trail() == trail
                if unchanged and not await self._is_moving(folder):
                    raise
            else:
                unchanged = before[0] == folder.version and not folder.is_changing
                if unchanged and not await self._is_unsettled(seen):
                    return seen

    async def at(self, inode: Inode, use: Callable[[int, Entry], T], *, holding: bool = False) -> T:
        """Calls `use(folder, entry)` in a thread, with what the inode stands for, looked at anew.

        ESTALE, upon which the kernel looks the name up again, if another file has its name by now. `holding`:
        the caller holds the inode's lock; else whoever does may have changed its file and not told it yet.
        """
        while True:
            folder, name = inode.place()
            await self.quiet(folder)
            trail = folder.trail()
            before = folder, name, folder.version, trail, self.inodes.moves, inode.key

            def look_and_use(trail: list[Step] = trail, name: bytes = name) -> T:
                with self.store.folder(trail) as descriptor:
                    entry = self.store.find(descriptor, name)
                    if not inode.is_meant_by(entry):
                        raise OSError(errno.ESTALE, "the file was replaced", name)
                    return use(descriptor, entry)

            try:
                return await on_disk(look_and_use)
            except FUSEError:
                folder, name = inode.place()
                after = folder, name, folder.version, folder.trail(), self.inodes.moves, inode.key
                if before == after and not await self._is_moving(folder):
                    if holding or not inode.is_locked:
                        raise
                    async with inode.lock:
                        pass

    async def on_file(
        self,
        inode: Inode,
        by_entry: Callable[[int, Entry], T],
        by_path: Callable[[str], T],
        *,
        holding: bool = False,
    ) -> T:
        """As `at`; of a file that has lost its last name, calls `by_path` with a path that leads to it."""
        while True:
            if not inode.places and (file := self._nameless(inode)) is not None:
                kept = os.dup(file)
                try:
                    return await on_disk(by_path, descriptor_path(kept))
                finally:
                    let_go(kept)
            try:
                return await self.at(inode, by_entry, holding=holding)
            except FUSEError:
                if inode.places or self._nameless(inode) is None:
                    raise

    def _nameless(self, inode: Inode) -> int | None:
        return inode.open[-1].file if inode.open else inode.nameless

    async def _is_unsettled(self, seen: object) -> bool:
        """Whether an entry seen is of a file that somebody is changing; waits for the change."""
        found = seen if isinstance(seen, list) else [seen]
        inode = self.inodes.being_changed([entry for entry in found if isinstance(entry, Entry)])
        if inode is None:
            return False
        async with inode.lock:
            return True

    async def steadily(self, folders: Sequence[Inode], change: Callable[[], Awaitable[T]]) -> T:
        """Makes a change of names in folders, again if it came to nothing because the way there was renamed.

        The caller holds no lock: whoever renames might wait for it.
        """
        while True:
            before = self.inodes.moves, [folder.trail() for folder in folders]
            try:
                return await change()
            except FUSEError as error:
                if error.errno != errno.ESTALE:
                    raise
                moving = [await self._is_moving(folder) for folder in folders]
                after = self.inodes.moves, [folder.trail() for folder in folders]
                if not any(moving) and before == after:
                    raise

    async def _is_moving(self, folder: Inode | None) -> bool:
        """Whether names on the way down to a folder, or in it, are being changed; waits for the change."""
        while folder is not None:
            if folder.is_changing:
                await self.quiet(folder)
                return True
            folder = folder.parent
        return False

    async def entry_of(self, inode: Inode, *, holding: bool = False) -> Entry:
        """What the inode stands for, as `on_file`."""
        kind = inode.key[0]

        def by_entry(folder: int, entry: Entry) -> Entry:
            return entry

        return await self.on_file(
            inode, by_entry, lambda path: self.store.describe(path, kind), holding=holding
        )


def descriptor_path(descriptor: int) -> str:
    """A path that leads to an open file, whatever it is called."""
    return f"/proc/self/fd/{descriptor}"


def _root(store: Store) -> Inode:
    status = os.fstat(store.root)
    key = Kind.RAW, status.st_dev, status.st_ino
    return Inode(pyfuse3.ROOT_INODE, key, Identity.of(status), is_folder=True)
