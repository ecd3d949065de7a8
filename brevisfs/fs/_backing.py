"""Backing files that handles hold open: one descriptor and one archive reader for all handles of a file."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from brevisfs._native import Index
from brevisfs._native.front import Front, FrontFile
from brevisfs.store import Identity, Kind


class Reader(Protocol):
    """What the mount asks of an archive reader, see `brevisfs.archive.Reader`."""

    @property
    def size(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def index(self) -> Index: ...
    def move(self, fd: int) -> None: ...
    def read_into(self, offset: int, out: Any) -> None: ...
    def drop_programs(self) -> None: ...


Key = tuple[Kind, Identity]

_PREPARED_BYTES = 8
"""What the front holds of each section, whether that is prepared or not."""


@dataclass(slots=True, eq=False)
class Backing:
    """One open backing file. `name` is its path in the store, for the log; a raw file has no `reader`.

    `front_file` is what the front reads, None for an archive of nothing. `damaged` holds the places whose
    damage the log has told; `weight` is the bytes that its index takes.
    """

    name: str
    kind: Kind
    identity: Identity
    file: int
    reader: Reader | None = None
    front_file: FrontFile | None = None
    users: int = 0
    weight: int = 0
    damaged: set[int] = field(default_factory=set)
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.kind, self.identity


class Backings:
    """Every backing file that is open; closed when its last user lets it go.

    Those that are open for reading only are shared by kind and identity. All methods belong to the event
    loop. `open_reader` makes a reader of an archive's descriptor, and `front` is to read all. `memory` is
    the bytes that indexes take: those of the open archives, and at most an eighth of `budget` of archives
    that were closed, for the next time that they are opened. The front may have what it leaves of the budget,
    and half of that at least.
    """

    def __init__(self, open_reader: Callable[[int], Reader], front: Front, budget: int) -> None:
        self._open_reader = open_reader
        self._front = front
        self._budget = budget
        self._kept: OrderedDict[Key, Backing] = OrderedDict()
        self._kept_memory = 0
        self.memory = 0
        self._open: set[Backing] = set()
        self._shared: dict[Key, Backing] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def adopt(self, opened: Backing) -> Backing:
        """The backing to use for a file just opened, with one user more: `opened`, or its elder equal.

        Raises what opening an archive raises, with `opened` closed.
        """
        present = self._shared.get(opened.key)
        kept = self._kept.pop(opened.key, None) if present is None else None
        if kept is not None and kept.reader is not None:
            self._kept_memory -= kept.weight
            kept.reader.move(opened.file)
            opened.reader, opened.front_file, opened.weight = kept.reader, kept.front_file, kept.weight
        elif present is None and opened.kind is Kind.ARCHIVE:
            try:
                opened.reader = await trio.to_thread.run_sync(self._open_reader, opened.file)
            except BaseException:
                os.close(opened.file)
                raise
            present = self._shared.get(opened.key)
        if present is None:
            present = self._shared[opened.key] = self._add(opened)
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
            opened.front_file = FrontFile(self._front)
        elif not opened.weight:
            opened.weight = reader.memory + _PREPARED_BYTES * len(reader.index)
            self._change_memory(opened.weight)
            if reader.size:
                opened.front_file = FrontFile(self._front, opened.identity, reader.index)
        if opened.front_file is not None:
            opened.front_file.open(opened.file)
        return opened

    def release(self, backing: Backing) -> None:
        """Takes one user back."""
        backing.users -= 1
        if backing.users == 0:
            self._open.remove(backing)
            if self._shared.get(backing.key) is backing:
                del self._shared[backing.key]
            if backing.front_file is None or backing.front_file.close(wait=False):
                self._closed(backing)
            else:
                trio.lowlevel.spawn_system_task(self._close_later, backing, backing.front_file)

    @contextmanager
    def held(self, backing: Backing) -> Iterator[Backing]:
        """Keeps the backing open for the time of the block."""
        backing.users += 1
        try:
            yield backing
        finally:
            self.release(backing)

    async def _close_later(self, backing: Backing, file: FrontFile) -> None:
        """As soon as threads of the front have read what they are reading."""
        await trio.to_thread.run_sync(file.close)
        self._closed(backing)

    def _closed(self, backing: Backing) -> None:
        """Keeps what is known of an archive, unless that is much, or it has been opened again meanwhile."""
        let_go(backing.file)
        key = backing.key
        if backing.reader is None or key in self._shared or key in self._kept:
            self._forget(backing)
            return
        self._kept[key] = backing
        self._kept_memory += backing.weight
        while self._kept_memory > self._budget // 8:
            _, oldest = self._kept.popitem(last=False)
            self._kept_memory -= oldest.weight
            self._forget(oldest)

    def _forget(self, backing: Backing) -> None:
        if backing.front_file is not None:
            backing.front_file.free()
        if backing.weight:
            self._change_memory(-backing.weight)

    def _change_memory(self, size: int) -> None:
        self.memory += size
        self._front.limit(max(self._budget // 2, self._budget - self.memory))


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
