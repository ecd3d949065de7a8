"""Archives read as the mount reads them, through the cache that Python shares with the front."""

import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import trio

from brevisfs.archive import Reader
from brevisfs.fs._backing import Backing
from brevisfs.fs._reads import SMALLEST_BUDGET, Reads
from brevisfs.store import Identity, Kind
from tests.archives import opened
from tests.stores import raw_archive

BLOCK = 128 * 1024


class Setting:
    """Reads, with archives to read."""

    def __init__(self, budget: int, held: ExitStack) -> None:
        self.reads = Reads(budget, 2, Reader)
        held.callback(self.reads.front.end)
        self._held = held

    async def open(self, archive: bytes) -> Backing:
        return await self.adopt(os.dup(self._held.enter_context(opened(archive))))

    async def adopt(self, file: int) -> Backing:
        opened = Backing("m.brv", Kind.ARCHIVE, Identity.of(os.fstat(file)), file)
        return await self.reads.backings.adopt(opened)

    async def read(self, backing: Backing, offset: int, size: int) -> bytes:
        return bytes(await self.reads.read(backing, offset, size))

    async def closed(self) -> None:
        """Waits until all files are: what comes after a read may still be being prepared."""
        while len(self.reads.backings):
            await trio.lowlevel.checkpoint()

    def count(self, name: str) -> int:
        return self.reads.counters()[name]


def run(test: Callable[[Setting], Awaitable[None]], budget: int = SMALLEST_BUDGET) -> None:
    async def limited() -> None:
        with ExitStack() as held, trio.fail_after(100):
            setting = Setting(budget, held)
            await test(setting)
            for backing in list(setting.reads.backings._open):
                setting.reads.backings.release(backing)
            await setting.closed()

    trio.run(limited)


def archive_of(*sections: bytes, block: int = BLOCK) -> bytes:
    return raw_archive(sections, block)
