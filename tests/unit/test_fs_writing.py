"""Changes that meet in the middle, made with the handlers and without a mount."""

import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio
from pyfuse3 import ROOT_INODE, FUSEError

from brevisfs.archive import Reader
from brevisfs.fs import _writing
from brevisfs.fs._operations import Operations
from brevisfs.fs._publishing import Source
from brevisfs.fs._reads import SMALLEST_BUDGET, Reads
from brevisfs.fs._state import on_disk
from brevisfs.store import (
    Changes,
    Identity,
    Kind,
    Private,
    SourceMoved,
    Store,
    Temporary,
    _changes,
    _recover,
    begin_session,
)
from tests.stores import add_archive, flip, noise, raw_archive
from tests.twins import model

DATA = noise(3000)


class Caller:
    """Who makes a request."""

    def __init__(self) -> None:
        self.uid, self.gid, self.pid, self.umask = os.geteuid(), os.getegid(), os.getpid(), 0o022


CALLER: Any = Caller()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


class Gate:
    """Readers that hold up the first decode until `open` is called; `reached` is set when one has come."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        self.decoded = 0

    def open(self) -> None:
        self._opened.set()

    def reader(self, file: int) -> Reader:
        gate = self

        class HeldUp(Reader):
            def read_into(self, offset: int, out: Any) -> None:
                gate.decoded += 1
                gate.reached.set()
                assert gate._opened.wait(60)
                super().read_into(offset, out)

        return HeldUp(file)


def serving(
    root: Path,
    test: Callable[[Operations], Awaitable[None]],
    open_reader: Callable[[int], Reader] = Reader,
) -> None:
    """Runs `test` with the handlers of a store that can be changed."""

    async def run() -> None:
        with ExitStack() as held, trio.fail_after(100):
            store = held.enter_context(Store(root))
            session = begin_session(store, held)
            reads = Reads(SMALLEST_BUDGET, 2, open_reader)
            operations = Operations(store, reads, session)
            try:
                await test(operations)
            finally:
                reads.front.end()
            # What comes after a read may still be being prepared.
            while len(reads.backings):
                await trio.lowlevel.checkpoint()
            assert operations.stray == 0
            assert os.listdir(root / ".brevisfs/tmp") == []

    trio.run(run)


async def number(operations: Operations, *names: bytes) -> int:
    inode: int = ROOT_INODE
    for name in names:
        inode = (await operations.lookup(inode, name, None)).st_ino
    return inode


async def opened(operations: Operations, flags: int, *names: bytes) -> int:
    handle: int = (await operations.open(await number(operations, *names), flags, CALLER)).fh
    return handle


async def refusal(answer: Awaitable[Any]) -> int:
    with pytest.raises(FUSEError) as caught:
        await answer
    return caught.value.errno


async def done_or_waiting(done: trio.Event, lock: trio.Lock) -> None:
    """Returns once something is done or has to wait for a lock."""
    while not (done.is_set() or lock.statistics().tasks_waiting):
        await trio.sleep(0.001)


@contextmanager
def descriptors() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_writers_unpack_once_and_readers_follow(root: Path) -> None:
    add_archive(root / "m.brv", [DATA])
    gate = Gate()

    async def test(operations: Operations) -> None:
        first, second = [await opened(operations, os.O_RDWR, b"m") for _ in range(2)]
        reader = await opened(operations, os.O_RDONLY, b"m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.write, first, 0, b"one")
            nursery.start_soon(operations.write, second, 100, b"two")
            await trio.to_thread.run_sync(gate.reached.wait)
            assert (await operations.getattr(await number(operations, b"m"), None)).st_size == len(DATA)
            gate.open()
        expected = b"one" + DATA[3:100] + b"two" + DATA[103:]
        for handle in (first, second, reader):
            assert bytes(await operations.read(handle, 0, 5000)) == expected
            await operations.release(handle)
        assert (root / "m").read_bytes() == expected
        assert gate.decoded == 1
        assert not (root / "m.brv").exists()

    with descriptors():
        serving(root, test, gate.reader)


def test_programs_go_when_a_file_is_unpacked(root: Path) -> None:
    add_archive(root / "m.brv", [DATA])
    readers: list[Reader] = []

    def reader(file: int) -> Reader:
        readers.append(Reader(file))
        return readers[-1]

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"m")
        index = readers[0].memory
        await operations.write(handle, 0, b"one")
        assert readers[0].memory == index
        await operations.release(handle)

    serving(root, test, reader)


def _sleep() -> None:
    time.sleep(0.01)


def _be_busy() -> None:
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize(("slow", "in_threads"), [(_sleep, [False, False, True]), (_be_busy, 3 * [False])])
def test_what_the_disk_holds_up_is_written_by_a_thread(
    root: Path, monkeypatch: pytest.MonkeyPatch, slow: Callable[[], None], in_threads: list[bool]
) -> None:
    """Not what waits for a processor alone."""
    loop = threading.current_thread()
    seen = []

    def write(file: int, data: bytes, offset: int) -> int:
        seen.append(threading.current_thread() is not loop)
        slow()
        return len(data)

    monkeypatch.setattr(_writing, "_write_most", write)
    (root / "m").touch()

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_WRONLY, b"m")
        for _ in range(3):
            assert await operations.write(handle, 0, b"x") == 1
        await operations.release(handle)

    serving(root, test)
    assert seen == in_threads


def test_renamed_with_its_folder_while_it_is_unpacked(root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    add_archive(root / "a/b/m.brv", [DATA])
    gate = Gate()

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"a", b"b", b"m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.write, handle, 0, b"new")
            await trio.to_thread.run_sync(gate.reached.wait)
            b = await number(operations, b"a", b"b")
            await operations.rename(b, b"m", b, b"n", 0, CALLER)
            await operations.rename(ROOT_INODE, b"a", ROOT_INODE, b"c", 0, CALLER)
            gate.open()
        await operations.release(handle)
        assert (root / "c/b/n").read_bytes() == b"new" + DATA[3:]
        assert os.listdir(root / "c/b") == ["n"]

    serving(root, test, gate.reader)


def test_a_linked_archive_in_a_folder_that_is_moved(root: Path) -> None:
    """All names are found, wherever they are by now."""
    (root / "a/b").mkdir(parents=True)
    add_archive(root / "a/b/m.brv", [DATA])
    os.link(root / "a/b/m.brv", root / "a/n.brv")

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"a", b"b", b"m")

        async def there_and_back() -> None:
            for _ in range(20):
                await operations.rename(ROOT_INODE, b"a", ROOT_INODE, b"c", 0, CALLER)
                await operations.rename(ROOT_INODE, b"c", ROOT_INODE, b"a", 0, CALLER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(there_and_back)
            nursery.start_soon(operations.write, handle, 0, b"new")
        await operations.release(handle)
        assert (root / "a/b/m").read_bytes() == (root / "a/n").read_bytes() == b"new" + DATA[3:]
        assert (root / "a/n").stat().st_nlink == 2

    serving(root, test)


def test_two_linked_archives_are_unpacked_one_after_the_other(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go through one record of what is intended: else the names of one would become the other file."""
    contents = {b"one": noise(3000, 1), b"two": noise(3000, 2)}
    for name, data in contents.items():
        folder = root / os.fsdecode(name)
        folder.mkdir()
        add_archive(folder / "m.brv", [data])
        os.link(folder / "m.brv", folder / "n.brv")
    intended, go_on = threading.Event(), threading.Event()
    record_intent = _recover._record_intent

    def hold_up(private: Private, record: bytes) -> None:
        if not intended.is_set():
            intended.set()
            assert go_on.wait(60)
        record_intent(private, record)

    monkeypatch.setattr(_recover, "_record_intent", hold_up)

    async def test(operations: Operations) -> None:
        handles = {name: await opened(operations, os.O_RDWR, name, b"m") for name in contents}
        second = trio.Event()

        async def write_second() -> None:
            await operations.write(handles[b"two"], 0, b"new")
            second.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.write, handles[b"one"], 0, b"new")
            await trio.to_thread.run_sync(intended.wait)
            nursery.start_soon(write_second)
            await done_or_waiting(second, operations.tree)
            go_on.set()
        for name, data in contents.items():
            await operations.release(handles[name])
            for file in ("m", "n"):
                assert (root / os.fsdecode(name) / file).read_bytes() == b"new" + data[3:]

    serving(root, test)


Seek = Callable[[Operations, Callable[[], None]], Awaitable[None]]


async def _at(operations: Operations, meet: Callable[[], None]) -> None:
    inode = operations.inodes[await number(operations, b"a", b"b", b"m")]
    await operations.at(inode, lambda folder, entry: meet())


async def _look(operations: Operations, meet: Callable[[], None]) -> None:
    folder = operations.inodes[await number(operations, b"a", b"b")]
    await operations.look(folder, lambda descriptor: meet())


async def _change(operations: Operations, meet: Callable[[], None]) -> None:
    folder = operations.inodes[await number(operations, b"a", b"b")]
    await operations.steadily([folder], lambda: on_disk(meet))


@pytest.mark.parametrize("seek", [_at, _look, _change])
def test_a_way_that_was_moved_there_and_back_is_looked_for_again(root: Path, seek: Seek) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/m").touch()
    reached, moved = threading.Event(), threading.Event()
    tries = []

    def meet() -> None:
        tries.append(reached.is_set())
        reached.set()
        assert moved.wait(60)
        if len(tries) == 1:
            raise OSError(errno.ESTALE, "the folder was away")

    async def test(operations: Operations) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(seek, operations, meet)
            await trio.to_thread.run_sync(reached.wait)
            for old, new in ((b"a", b"c"), (b"c", b"a")):
                await operations.rename(ROOT_INODE, old, ROOT_INODE, new, 0, CALLER)
            moved.set()
        assert tries == [False, True]

    serving(root, test)


@pytest.mark.parametrize("links", [1, 2])
def test_unlinked_while_it_is_unpacked(root: Path, links: int) -> None:
    """The name that is removed is gone, another one is still the file."""
    add_archive(root / "m.brv", [DATA])
    if links == 2:
        os.link(root / "m.brv", root / "other.brv")
    gate = Gate()

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.write, handle, 0, b"new")
            await trio.to_thread.run_sync(gate.reached.wait)
            await operations.unlink(ROOT_INODE, b"m", CALLER)
            gate.open()
        assert bytes(await operations.read(handle, 0, 5000)) == b"new" + DATA[3:]
        await operations.release(handle)
        left = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
        assert left == ({"other": b"new" + DATA[3:]} if links == 2 else {})

    serving(root, test, gate.reader)


def test_moved_away_in_the_store_itself_while_it_is_unpacked(root: Path) -> None:
    """The writer is told, rather than that it writes to a file that nobody finds."""
    add_archive(root / "m.brv", [DATA])
    gate = Gate()

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"m")

        async def write() -> None:
            assert await refusal(operations.write(handle, 0, b"new")) in (errno.ESTALE, errno.ENOENT)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.to_thread.run_sync(gate.reached.wait)
            (root / "m.brv").rename(root / "n.brv")
            gate.open()
        await operations.release(handle)
        assert sorted(os.listdir(root)) == [".brevisfs", "n.brv"]

    serving(root, test, gate.reader)


def test_a_damaged_archive_is_not_unpacked(root: Path) -> None:
    add_archive(root / "m.brv", [DATA])
    flip(root / "m.brv", 200)

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"m")
        assert await refusal(operations.write(handle, 0, b"new")) == errno.EIO
        await operations.release(handle)
        assert sorted(os.listdir(root)) == [".brevisfs", "m.brv"]

    with descriptors():
        serving(root, test)


def test_nobody_waits_for_a_file_to_be_unpacked_when_the_mount_ends(root: Path) -> None:
    data = add_archive(root / "m.brv", [noise(1 << 20)] * 6)
    gate = Gate()

    async def test(operations: Operations) -> None:
        handle = await opened(operations, os.O_RDWR, b"m")

        async def write() -> None:
            assert await refusal(operations.write(handle, 0, b"new")) == errno.ECANCELED

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.to_thread.run_sync(gate.reached.wait)
            operations.ending = True
            gate.open()
        assert bytes(await operations.read(handle, 0, 5000)) == data[:5000]
        await operations.release(handle)
        assert gate.decoded == 1
        assert sorted(os.listdir(root)) == [".brevisfs", "m.brv"]

    serving(root, test, gate.reader)


async def packed(operations: Operations, *names: bytes) -> tuple[Any, Source, Temporary]:
    """What a worker has made of a file."""
    inode = operations.inodes[await number(operations, *names)]
    source = await operations.source(inode)
    assert source is not None
    archive = operations.changes.private.temporary()
    os.write(archive.file, raw_archive([os.pread(source.file, 1 << 20, 0)]))
    return inode, source, archive


def given_back(operations: Operations, source: Source, archive: Temporary) -> None:
    operations.changes.private.discard(archive)
    os.close(archive.file)
    os.close(source.file)


Meanwhile = Callable[[Operations, int], Awaitable[Any]]


async def _write(operations: Operations, inode: int) -> None:
    handle = (await operations.open(inode, os.O_WRONLY, CALLER)).fh
    await operations.write(handle, 0, b"x")
    await operations.release(handle)


async def _open(operations: Operations, inode: int) -> None:
    await operations.open(inode, os.O_WRONLY, CALLER)


async def _truncate(operations: Operations, inode: int) -> None:
    operations.begin_change(operations.inodes[inode])
    await operations.resize(operations.inodes[inode], 5)
    operations.end_change(operations.inodes[inode])


async def _unlink(operations: Operations, inode: int) -> None:
    await operations.unlink(ROOT_INODE, b"m", CALLER)


async def _link(operations: Operations, inode: int) -> None:
    await operations.link(inode, ROOT_INODE, b"n", CALLER)


async def _replace(operations: Operations, inode: int) -> None:
    await operations.mknod(ROOT_INODE, b"new", 0o100600, 0, CALLER)
    await operations.rename(ROOT_INODE, b"new", ROOT_INODE, b"m", 0, CALLER)


@pytest.mark.parametrize("meanwhile", [_write, _open, _truncate, _unlink, _link, _replace])
def test_what_keeps_an_archive_from_being_published(root: Path, meanwhile: Meanwhile) -> None:
    data = model(1)
    (root / "m").write_bytes(data)

    async def test(operations: Operations) -> None:
        inode, source, archive = await packed(operations, b"m")
        await meanwhile(operations, inode.number)
        before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
        assert not await operations.publish(inode, source, archive)
        assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
        assert inode.key[0] is Kind.RAW
        given_back(operations, source, archive)
        for handle in [number for number, _ in list(operations.files._open.items())]:
            await operations.release(handle)

    serving(root, test)


async def _rename(operations: Operations, inode: int) -> None:
    await operations.rename(ROOT_INODE, b"m", ROOT_INODE, b"n", 0, CALLER)


async def _chmod(operations: Operations, inode: int) -> None:
    await operations.change_metadata(operations.inodes[inode], lambda path: os.chmod(path, 0o604))


async def _read(operations: Operations, inode: int) -> None:
    await operations.release((await operations.open(inode, os.O_RDONLY, CALLER)).fh)


@pytest.mark.parametrize("meanwhile", [_rename, _chmod, _read])
def test_what_does_not(root: Path, meanwhile: Meanwhile) -> None:
    data = model(1)
    (root / "m").write_bytes(data)

    async def test(operations: Operations) -> None:
        inode, source, archive = await packed(operations, b"m")
        await meanwhile(operations, inode.number)
        before = await operations.getattr(inode.number, None)
        assert await operations.publish(inode, source, archive)
        given_back(operations, source, archive)
        assert inode.key[0] is Kind.ARCHIVE
        after = await operations.getattr(inode.number, None)
        for name in ("st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink"):
            assert getattr(before, name) == getattr(after, name)
        (name,) = [path.name for path in root.iterdir() if path.is_file()]
        assert name == ("n.brv" if meanwhile is _rename else "m.brv")
        handle = (await operations.open(inode.number, os.O_RDONLY, CALLER)).fh
        assert bytes(await operations.read(handle, 0, 1 << 20)) == data
        await operations.release(handle)

    serving(root, test)


def test_times_of_a_folder_that_are_set_while_a_file_in_it_is_published(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "d").mkdir()
    (root / "d/m").write_bytes(model(1))
    reached, go_on = threading.Event(), threading.Event()

    def sync(folder: int) -> None:
        reached.set()
        assert go_on.wait(60)

    monkeypatch.setattr(_changes, "sync_folder", sync)

    async def test(operations: Operations) -> None:
        inode, source, archive = await packed(operations, b"d", b"m")
        folder = operations.inodes[await number(operations, b"d")]
        are_set = trio.Event()

        async def set_times() -> None:
            await operations.change_metadata(folder, lambda path: os.utime(path, ns=(5, 7)))
            are_set.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.publish, inode, source, archive)
            await trio.to_thread.run_sync(reached.wait)
            nursery.start_soon(set_times)
            await done_or_waiting(are_set, folder.lock)
            go_on.set()
        given_back(operations, source, archive)
        assert os.listdir(root / "d") == ["m.brv"]
        shown = await operations.getattr(folder.number, None)
        assert shown.st_mtime_ns == 7
        assert shown.st_ctime_ns == (root / "d").stat().st_ctime_ns

    serving(root, test)


def test_a_file_that_moves_as_it_is_published_leaves_the_folders_times(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "m").write_bytes(model(1))
    check, checks = Changes._check_source, count(1)

    def second_fails(self: Changes, folder: int, name: bytes, source: Identity) -> None:
        if next(checks) == 2:
            raise SourceMoved(name)
        check(self, folder, name, source)

    async def test(operations: Operations) -> None:
        inode, source, archive = await packed(operations, b"m")
        before = root.stat().st_mtime_ns
        monkeypatch.setattr(Changes, "_check_source", second_fails)
        assert not await operations.publish(inode, source, archive)
        assert next(checks) == 3
        assert (root.stat().st_mtime_ns, (root / "m.brv").exists()) == (before, False)
        given_back(operations, source, archive)

    serving(root, test)


def test_a_taken_name_keeps_an_archive_from_being_published(root: Path) -> None:
    (root / "m").write_bytes(model(1))

    async def test(operations: Operations) -> None:
        inode, source, archive = await packed(operations, b"m")
        (root / "m.brv").write_text("a text")
        assert await operations.source(inode) is None
        assert await refusal(operations.publish(inode, source, archive)) == errno.EEXIST
        given_back(operations, source, archive)
        assert (root / "m").read_bytes() == model(1)
        assert (root / "m.brv").read_text() == "a text"

    serving(root, test)


def test_names_that_an_archive_cannot_have_unpack_it(root: Path) -> None:
    long = b"x" * 253
    for name in ("a", "b", "c"):
        add_archive(root / f"{name}.brv", [DATA])
    (root / "taken.brv").write_text("a text")
    (root / "raw").write_bytes(b"raw")

    async def test(operations: Operations) -> None:
        a = await number(operations, b"a")
        await operations.rename(ROOT_INODE, b"a", ROOT_INODE, long, 0, CALLER)
        assert (root / os.fsdecode(long)).read_bytes() == DATA
        assert await number(operations, long) == a
        await operations.link(await number(operations, b"b"), ROOT_INODE, b"taken", CALLER)
        assert (root / "taken").read_bytes() == (root / "b").read_bytes() == DATA
        flags = pyfuse3.RENAME_EXCHANGE
        await operations.rename(ROOT_INODE, b"raw", ROOT_INODE, b"c", flags, CALLER)
        assert ((root / "raw").read_bytes(), (root / "c").read_bytes()) == (DATA, b"raw")

    serving(root, test)


def test_reserved_names_cannot_be_made_or_written_to(root: Path) -> None:
    (root / "text.brv").write_text("a text")

    async def test(operations: Operations) -> None:
        text = await number(operations, b"text.brv")
        for name in (b"x.brv", b"x.brv+", b".brevisfs"):
            for request in (
                operations.create(ROOT_INODE, name, 0o600, os.O_RDWR, CALLER),
                operations.mkdir(ROOT_INODE, name, 0o700, CALLER),
                operations.symlink(ROOT_INODE, name, b"target", CALLER),
                operations.link(text, ROOT_INODE, name, CALLER),
                operations.rename(ROOT_INODE, b"text.brv", ROOT_INODE, name, 0, CALLER),
            ):
                assert await refusal(request) == errno.EINVAL
        assert await refusal(operations.open(text, os.O_RDWR, CALLER)) == errno.EINVAL
        await operations.rename(ROOT_INODE, b"text.brv", ROOT_INODE, b"text", 0, CALLER)
        assert sorted(os.listdir(root)) == [".brevisfs", "text"]

    serving(root, test)
