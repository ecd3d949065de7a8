"""What is to be packed, when, and by how many workers. See docs/design/writes.md."""

import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from pyfuse3 import FUSEError

from brevisfs.errors import BrevisError
from brevisfs.fs._inodes import Inode
from brevisfs.fs._options import RecompressionOptions
from brevisfs.fs._publishing import Publishing, Source
from brevisfs.fs._state import on_disk
from brevisfs.fs._yielding import Yielding
from brevisfs.recompress import Pace, check_room, looks_like_model, too_little
from brevisfs.recompress.start import Refused, pack_in_worker
from brevisfs.store import PENDING_SUFFIX, Entry, Kind, Step, Store, Temporary, equal_losers, settle, walk

log = logging.getLogger("brevisfs.fs")

_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 3600.0
# How often to look whether a pause is over that nothing tells the end of, and whether workers give way.
_LOOK_AGAIN, _LOOK = 20.0, 0.01
# Files found at the start that wait; finding more waits for these.
_MOST_WAITING = 1000


@dataclass(slots=True, eq=False)
class Job:
    """A file to be packed. `due` is a time of trio's clock; `done` of `total` tells how far a worker is."""

    inode: Inode
    due: float
    failures: int = 0
    error: str = ""
    done: int = 0
    total: int = 0
    set_pace: Callable[[Pace], None] | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Recompression:
    """The queue. All methods belong to the event loop."""

    def __init__(self, operations: Publishing, options: RecompressionOptions) -> None:
        self._operations = operations
        self._options = options
        self._waiting: dict[Inode, Job] = {}
        self._running: dict[Inode, Job] = {}
        self._changed = trio.Event()
        self._scanning = True
        self.paused = False
        self.draining = False
        self._yields = False
        self.packed = 0
        self.saved = 0
        self.refused = 0

    async def run(self) -> None:
        """Works until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._put_in_order)
            nursery.start_soon(self._yield)
            for _ in range(self._options.workers):
                nursery.start_soon(self._work)

    def begin_change(self, inode: Inode) -> None:
        """The file may change: what is known of it is void."""
        self.removed(inode)

    def removed(self, inode: Inode) -> None:
        """The file is not to be packed, until a change ends."""
        waiting = self._waiting.get(inode)
        if waiting is not None:
            self._drop(waiting)
        running = self._running.get(inode)
        if running is not None:
            running.scope.cancel()

    def end_change(self, inode: Inode) -> None:
        """The file may have changed, and nobody can change it any more: it is to be packed in a while."""
        if self._options.enabled:
            self._add(inode, self._options.settle)

    def command(self, what: bytes) -> None:
        """Does what somebody asks for. Raises ValueError for anything but these:

        `pause` holds up the running workers and starts no more, until `resume`; `drain` packs what waits
        without letting it settle, whatever the hour and the load, and tries once more what failed before,
        until `undrain`.
        """
        match what:
            case b"pause" | b"resume":
                self.paused = what == b"pause"
            case b"drain" | b"undrain":
                self.draining = what == b"drain"
            case _:
                raise ValueError(what)
        if what == b"drain":
            for job in self._waiting.values():
                job.error = ""
        self._set_paces()
        self._wake()

    def status(self) -> dict[str, Any]:
        """What is going on, for people and for scripts."""
        failed = [job for job in self._waiting.values() if job.error]
        return {
            "paused": self.paused,
            "searching": self._scanning,
            "left": self.left,
            "packing": [
                {"name": _name(job.inode), "done": job.done, "total": job.total}
                for job in self._running.values()
            ],
            "failed": [
                {"name": _name(job.inode), "error": job.error, "tries": job.failures} for job in failed
            ],
            "packed": self.packed,
            "saved_bytes": self.saved,
            "refused": self.refused,
            "lost": self._operations.changes.private.count_lost(),
            "unpacking": [
                {"name": name, "done": done, "total": total}
                for name, (done, total) in self._operations.unpacked.items()
            ],
        }

    @property
    def left(self) -> int:
        """How many files are still to be packed, as far as it is known; those that failed do not count."""
        waiting = sum(not job.error for job in self._waiting.values())
        return waiting + len(self._running)

    def _add(self, inode: Inode, delay: float, failures: int = 0, error: str = "") -> None:
        if not inode.places or inode.key[0] is not Kind.RAW:
            return
        if inode not in self._waiting:
            self._operations.inodes.pin(inode)
        self._waiting[inode] = Job(inode, trio.current_time() + delay, failures, error)
        self._wake()

    def _drop(self, job: Job) -> None:
        del self._waiting[job.inode]
        self._operations.inodes.unpin(job.inode)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _work(self) -> None:
        while True:
            job = await self._next()
            await self._run(job)

    async def _next(self) -> Job:
        """Waits for a job that is due; it is running from then on."""
        while True:
            changed = self._changed
            wait = _LOOK_AGAIN
            if self._may_start():
                job = min(self._ready(), key=lambda job: job.due, default=None)
                wait = math.inf if job is None else job.due - trio.current_time()
                if job is not None and (wait <= 0 or self.draining):
                    # The pin goes over with it.
                    self._running[job.inode] = self._waiting.pop(job.inode)
                    self._wake()
                    return job
            with trio.move_on_after(wait):
                await changed.wait()

    def _ready(self) -> Iterator[Job]:
        for job in self._waiting.values():
            if job.inode not in self._running and not (self.draining and job.error):
                yield job

    def _may_start(self) -> bool:
        if self.draining:
            return True
        if self.paused or self._options.is_quiet(time.localtime()):
            return False
        return os.getloadavg()[0] <= self._options.max_load

    async def _run(self, job: Job) -> None:
        inode = job.inode
        try:
            with job.scope:
                await self._pack(job)
        except Exception as error:
            # Whatever it is: the file is as it was, and the mount has to go on.
            if not isinstance(error, BrevisError | FUSEError | OSError):
                log.exception("packing %s failed; please report this", _name(inode))
            pause = min(_FIRST_PAUSE * 2**job.failures, _LONGEST_PAUSE)
            said = os.strerror(error.errno) if isinstance(error, FUSEError) else str(error)
            log.warning("%s was not packed, next try in %d s: %s", _name(inode), pause, said)
            if inode not in self._waiting and not inode.writers:
                self._add(inode, pause, job.failures + 1, said)
        finally:
            del self._running[inode]
            self._operations.inodes.unpin(inode)
            self._wake()

    async def _pack(self, job: Job) -> None:
        source = await self._operations.source(job.inode)
        if source is None:
            return
        try:
            check_room(self._operations.store.root, source.identity.size)
            private = self._operations.changes.private
            archive = await trio.to_thread.run_sync(private.temporary)
            try:
                await self._pack_to(job, source, archive)
            finally:
                private.discard(archive)
                os.close(archive.file)
        finally:
            os.close(source.file)

    async def _pack_to(self, job: Job, source: Source, archive: Temporary) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total

        def started(set_pace: Callable[[Pace], None]) -> None:
            job.set_pace = set_pace
            self._set_paces()

        size = source.identity.size
        outcome = await pack_in_worker(
            source.file, archive.file, self._options.profile, progress=progress, started=started
        )
        job.set_pace = None
        if isinstance(outcome, Refused):
            self.refused += 1
            log.info("%s stays as it is: %s", source.name, outcome.reason)
        elif (reason := too_little(size, outcome.stored)) is not None:
            self.refused += 1
            log.info("%s stays as it is: %s", source.name, reason)
            catalog = self._operations.writing.catalog
            await trio.to_thread.run_sync(catalog.note_judgement, source.identity, reason)
        elif await self._operations.publish(job.inode, source, archive):
            self.packed += 1
            self.saved += size - outcome.stored
            log.info("%s was packed: %d bytes in %d", source.name, size, outcome.stored)
        elif job.inode.changes == source.changes:
            # It was changed in the store itself.
            self._add(job.inode, self._options.settle)

    def _set_paces(self) -> None:
        still = self.paused or self._yields
        pace = Pace.HURRIED if self.draining else Pace.PAUSED if still else Pace.MODEST
        for job in self._running.values():
            if job.set_pace is not None:
                job.set_pace(pace)

    async def _yield(self) -> None:
        """Has workers give way while somebody uses the mount, but for those that somebody waits for."""
        while True:
            while not self._running or self.paused or self.draining:
                await self._changed.wait()
            yielding = Yielding(trio.current_time(), time.process_time())
            while self._running and not self.paused and not self.draining:
                await trio.sleep(_LOOK)
                before, self._yields = self._yields, yielding.look(trio.current_time(), time.process_time())
                if self._yields != before:
                    self._set_paces()
            self._yields = False

    # What a former run has left.

    async def _put_in_order(self) -> None:
        try:
            await self._scan()
        except Exception:
            # The mount has to go on.
            log.exception("the search of the store failed; please report this")
        self._scanning = False
        self._wake()

    async def _scan(self) -> None:
        """Brings the store in order while it is served, and finds the files that are not packed yet."""
        operations = self._operations
        catalog = operations.writing.catalog
        root = os.fstat(operations.store.root)
        gone = await trio.to_thread.run_sync(catalog.known) - {(root.st_dev, root.st_ino)}
        folders = walk(operations.store)
        while True:
            step = await trio.to_thread.run_sync(next, folders, None)
            if step is None:
                break
            trail, found = step
            gone -= {(entry.status.st_dev, entry.status.st_ino) for entry, _ in found}
            try:
                for winner, losers in found:
                    if losers or winner.file.endswith(PENDING_SUFFIX):
                        await self._settle(trail, winner, losers)
                if self._options.enabled:
                    await self._add_models(trail, found)
            except (FUSEError, OSError) as error:
                log.warning("a folder could not be searched: %s", os.strerror(error.errno or 0))
        await trio.to_thread.run_sync(catalog.forget, gone)

    async def _settle(self, trail: list[Step], winner: Entry, losers: Sequence[Entry]) -> None:
        """Leaves a name with one file."""
        operations = self._operations
        with self._folder(trail) as folder:
            equal = await operations.look(
                folder, lambda descriptor: equal_losers(operations.store, descriptor, winner, losers)
            )
            inode = operations.inodes.at(folder, winner.name)
            async with operations.changing([inode], [folder]):
                with operations.unnoticed():
                    status = await on_disk(self._settle_on_disk, folder.trail(), winner.name, equal)
                    folder.version += 1
                if inode is not None and inode is operations.inodes.at(folder, winner.name):
                    operations.inodes.refresh(inode, status)

    def _settle_on_disk(self, trail: list[Step], name: bytes, equal: Sequence[Entry]) -> os.stat_result:
        session, store = self._operations.writing, self._operations.store
        with store.folder(trail) as folder, session.unnoticed(folder):
            settle(session.changes, folder, name, equal)
            return store.find(folder, name).status

    async def _add_models(self, trail: list[Step], found: Sequence[tuple[Entry, Sequence[Entry]]]) -> None:
        """Queues the raw files of a folder that look like models."""
        operations = self._operations
        names = [entry.name for entry, _ in found if entry.kind is Kind.RAW and not entry.is_folder]
        if not names:
            return

        def models(folder: int) -> list[Entry]:
            return [entry for name in names if (entry := _model(operations.store, folder, name)) is not None]

        with self._folder(trail) as folder:
            for entry in await operations.look(folder, models):
                inode = operations.inodes.assign(folder, entry)
                if not inode.writers and inode not in self._waiting and inode not in self._running:
                    self._add(inode, self._options.settle)
                operations.inodes.forget([(inode.number, 0)])
        while len(self._waiting) > _MOST_WAITING:
            await self._changed.wait()

    @contextmanager
    def _folder(self, trail: list[Step]) -> Iterator[Inode]:
        folder = self._operations.inodes.folder(trail)
        try:
            yield folder
        finally:
            self._operations.inodes.unpin(folder)


def _model(store: Store, folder: int, name: bytes) -> Entry | None:
    try:
        entry = store.find(folder, name)
        if entry.kind is not Kind.RAW or not stat.S_ISREG(entry.status.st_mode):
            return None
        file = store.open(folder, entry)
    except OSError:
        return None
    try:
        return entry if looks_like_model(file) else None
    finally:
        os.close(file)


def _name(inode: Inode) -> str:
    """The path in the mount, for people."""
    if not inode.places:
        return "a file that was removed"
    folder, name = inode.place()
    return os.fsdecode(b"/".join([*(step.name for step in folder.trail()), name]))
