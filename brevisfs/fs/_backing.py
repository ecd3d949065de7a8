"""Backing files that handles hold open: one descriptor and one archive reader for all handles of a file."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import trio

from brevisfs._native.front import Front, FrontFile
from brevisfs.archive import Follower, Section
from brevisfs.store import Identity, Kind


class Reader(Protocol):
    """What the mount asks of an archive reader, see `brevisfs.archive.Reader`."""

    @property
    def size(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...
    def section_at(self, offset: int) -> Section: ...
    def follow(self, follower: Follower) -> None: ...
    def move(self, fd: int) -> None: ...
    def prepare(self, begin: int, end: int) -> int: ...
    def read_into(self, offset: int, out: Any) -> None: ...
    def drop_programs(self) -> None: ...


Key = tuple[Kind, Identity]


@dataclass(slots=True, eq=False)
class Backing:
    """One open backing file. `name` is its path in the store, for the log; a raw file has no `reader`.

    `front_file` is what the front reads, None for an archive of nothing. `damaged` holds the places whose
    damage the log has told; `weight` is what `Backings.weigh` found last; `preparing`: see `Reads`.
    """

    name: str
    kind: Kind
    identity: Identity
    file: int
    reader: Reader | None = None
    front_file: FrontFile | None = None
    users: int = 0
    weight: int = 0
    preparing: bool = False
    damaged: set[int] = field(default_factory=set)
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.kind, self.identity


class Backings:
    """Every backing file that is open; closed when its last user lets it go.

    Those that are open for reading only are shared by kind and identity. All methods belong to the event
    loop. `open_reader` makes a reader of an archive's descriptor, and `front` is to read all. `memory` is
    the bytes that indexes and programs took when each was weighed: those of the open archives, and at most
    `most_kept` of archives that were closed, for the next time that they are opened.
    """

    def __init__(self, open_reader: Callable[[int], Reader], front: Front, most_kept: int) -> None:
        self._open_reader = open_reader
        self._front = front
        self._most_kept = most_kept
        self._kept: OrderedDict[Key, Reader] = OrderedDict()
        self._kept_memory = 0
        self.memory = 0
        self._open: set[Backing] = set()
        self._shared: dict[Key, Backing] = {}

    def __len__(self) -> int:
        return len(self._open)

    def weigh(self, backing: Backing) -> None:
        """Looks at what an open archive's index and programs take now."""
        if backing.reader is not None:
            self.memory += backing.reader.memory - backing.weight
            backing.weight = backing.reader.memory

    async def drop_programs(self, most: int = 0) -> None:
        """Lets go of what can be read again, of what was read longest ago first, until `memory` is `most`."""
        while self._kept and self.memory > most:
            self._forget_oldest()
        files = [(backing.front_file.used, backing) for backing in self._open if backing.front_file]
        for _, backing in sorted(files, key=lambda file: file[0]):
            # Others are closed while one is waited for.
            if self.memory > most and backing.reader is not None and backing in self._open:
                with self.held(backing):
                    await trio.to_thread.run_sync(backing.reader.drop_programs)
                    self.weigh(backing)

    async def adopt(self, opened: Backing) -> Backing:
        """The backing to use for a file just opened, with one user more: `opened`, or its elder equal.

        Raises what opening an archive raises, with `opened` closed.
        """
        present = self._shared.get(opened.key)
        if present is None and (kept := self._kept.pop(opened.key, None)) is not None:
            self._change_kept(-kept.memory)
            kept.move(opened.file)
            opened.reader = kept
        elif present is None and opened.kind is Kind.ARCHIVE:
            try:
                opened.reader = await trio.to_thread.run_sync(self._open_reader, opened.file)
            except BaseException:
                os.close(opened.file)
                raise
            present = self._shared.get(opened.key)
        if present is None:
            present = self._shared[opened.key] = self._add(opened)
            self.weigh(opened)
        else:
            os.close(opened.file)
        present.users += 1
        return present

    def own(self, opened: Backing) -> Backing:
        """A file just opened as a backing of its own, with one user: one that can be written."""
        self._add(opened)
        opened.users += 1
        return opened

    def _add(self, opened: Backing) -> Backing:
        self._open.add(opened)
        reader = opened.reader
        if reader is None:
            opened.front_file = FrontFile(self._front, opened.file)
        elif reader.size:
            opened.front_file = FrontFile(
                self._front, opened.file, opened.identity, reader.size, reader.offsets
            )
            reader.follow(opened.front_file)
        return opened

    def release(self, backing: Backing) -> None:
        """Takes one user back."""
        backing.users -= 1
        if backing.users == 0:
            self._open.remove(backing)
            self.memory -= backing.weight
            if self._shared.get(backing.key) is backing:
                del self._shared[backing.key]
            if backing.front_file is None or backing.front_file.clear(wait=False):
                _close_front_file(backing)
                let_go(backing.file)
                if backing.reader is not None:
                    self._keep(backing.key, backing.reader)
            else:
                trio.lowlevel.spawn_system_task(self._close_later, backing)

    def _keep(self, key: Key, reader: Reader) -> None:
        if reader.memory > self._most_kept:
            return
        self._kept[key] = reader
        self._change_kept(reader.memory)
        while self._kept_memory > self._most_kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, reader = self._kept.popitem(last=False)
        self._change_kept(-reader.memory)

    def _change_kept(self, size: int) -> None:
        self._kept_memory += size
        self.memory += size

    @staticmethod
    async def _close_later(backing: Backing) -> None:
        """As soon as threads of the front have read what they are reading."""
        await trio.to_thread.run_sync(_close_front_file, backing)
        let_go(backing.file)

    @contextmanager
    def held(self, backing: Backing) -> Iterator[Backing]:
        """Keeps the backing open for the time of the block."""
        backing.users += 1
        try:
            yield backing
        finally:
            self.release(backing)


def _close_front_file(backing: Backing) -> None:
    if backing.front_file is not None:
        backing.front_file.close()


def let_go(file: int) -> None:
    """Closes a descriptor without waiting for what the filesystem does then."""
    if os.fstat(file).st_nlink == 0:
        # All of a removed file is freed here, which can take long.
        trio.lowlevel.spawn_system_task(trio.to_thread.run_sync, _close, file)
    else:
        _close(file)


def _close(file: int) -> None:
    with suppress(OSError):  # what closing could lose was told to `flush`
        os.close(file)
