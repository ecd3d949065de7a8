"""The handlers called as pyfuse3 calls them, without a mount."""

import errno
import json
import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pyfuse3
import pytest
import trio
from pyfuse3 import ROOT_INODE, FUSEError

from brevisfs.archive import Reader
from brevisfs.fs._operations import Operations
from brevisfs.fs._reads import SMALLEST_BUDGET, Reads
from brevisfs.store import Store
from tests.stores import add_archive, flip, noise


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def serving(root: Path, test: Callable[[Operations], Awaitable[None]]) -> None:
    """Runs `test` with the handlers of a store, and checks that no handler made a mistake."""

    async def run() -> None:
        with Store(root) as store, trio.fail_after(100):
            reads = Reads(SMALLEST_BUDGET, 2, Reader)
            operations = Operations(store, reads)
            try:
                await test(operations)
            finally:
                reads.front.end()
            assert operations.stray == 0

    trio.run(run)


async def number(operations: Operations, *names: bytes) -> int:
    inode: int = ROOT_INODE
    for name in names:
        inode = (await operations.lookup(inode, name, None)).st_ino
    return inode


async def closed(operations: Operations) -> None:
    """Waits until all files are: what comes after a read may still be being prepared."""
    while len(operations.backings):
        await trio.lowlevel.checkpoint()


async def refusal(answer: Awaitable[Any]) -> int:
    with pytest.raises(FUSEError) as caught:
        await answer
    return caught.value.errno


def test_an_archive_is_the_plain_file(root: Path) -> None:
    data = add_archive(root / "m.brv", [noise(90), noise(100_000, 1)])
    os.chmod(root / "m.brv", 0o640)
    os.utime(root / "m.brv", ns=(10**18 + 1, 10**18 + 2))

    async def test(operations: Operations) -> None:
        found = await operations.lookup(ROOT_INODE, b"m", None)
        status = (root / "m.brv").stat()
        assert found.st_size == len(data)
        assert found.st_blocks == (status.st_blocks or 1)
        assert (found.st_mode, found.st_uid, found.st_gid) == (status.st_mode, status.st_uid, status.st_gid)
        assert (found.st_mtime_ns, found.st_ctime_ns) == (10**18 + 2, status.st_ctime_ns)
        assert (found.entry_timeout, found.attr_timeout) == (1, 1)
        opened = await operations.open(found.st_ino, os.O_RDONLY, None)
        assert opened.keep_cache
        assert bytes(await operations.read(opened.fh, 50, 1000)) == data[50:1050]
        assert bytes(await operations.read(opened.fh, len(data), 10)) == b""
        assert (await operations.getattr(found.st_ino, None)).st_size == len(data)
        await operations.flush(opened.fh)
        await operations.flush(opened.fh)
        assert bytes(await operations.read(opened.fh, 0, 10)) == data[:10]
        await operations.release(opened.fh)
        assert await refusal(operations.read(opened.fh, 0, 10)) == errno.EBADF
        await closed(operations)

    serving(root, test)


def test_a_raw_file_is_read_whole_whatever_the_disk_gives_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(10_000)
    (root / "raw").write_bytes(data)
    pread = os.pread

    async def test(operations: Operations) -> None:
        opened = await operations.open(await number(operations, b"raw"), os.O_RDONLY, None)
        assert bytes(await operations.read(opened.fh, 100, 5000)) == data[100:5100]

        def not_in_memory(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "preadv", not_in_memory)
        monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 700), offset))
        assert await operations.read(opened.fh, 100, 5000) == data[100:5100]
        assert await operations.read(opened.fh, 9000, 5000) == data[9000:]
        assert await operations.read(opened.fh, 10_000, 5) == b""
        monkeypatch.undo()
        await operations.release(opened.fh)

    serving(root, test)


def test_a_known_file_is_opened_without_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "raw").write_bytes(b"plain")
    add_archive(root / "m.brv", [noise(90)])

    async def test(operations: Operations) -> None:
        if not operations.store.is_at_once:
            pytest.skip("on a filesystem that is not asked what it has in memory")
        plain, archive = await number(operations, b"raw"), await number(operations, b"m")
        kept = await operations.open(archive, os.O_RDONLY, None)
        await operations.release(kept.fh)
        monkeypatch.setattr(trio.to_thread, "run_sync", None)
        opened = [await operations.open(inode, os.O_RDONLY, None) for inode in (plain, archive, archive)]
        for info in opened:
            assert info.keep_cache
            await operations.release(info.fh)
        monkeypatch.undo()
        # Where the kernel cannot tell from memory.
        monkeypatch.setattr(operations.store, "reopen", lambda *_: None)
        for inode in (plain, archive):
            await operations.release((await operations.open(inode, os.O_RDONLY, None)).fh)

    serving(root, test)


def test_a_known_name_is_looked_up_without_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "d").mkdir()
    (root / "d/raw").write_bytes(b"plain")
    data = add_archive(root / "d/m.brv", [noise(90)])
    os.setxattr(root / "d/raw", "user.x", b"y")
    later = time.time_ns() + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)

    async def test(operations: Operations) -> None:
        if not operations.store.is_at_once:
            pytest.skip("on a filesystem that is not asked what it has in memory")
        names = (b"raw", b"m")
        before = [await number(operations, b"d", name) for name in names]
        folder = await number(operations, b"d")
        assert await refusal(operations.lookup(folder, b"missing", None)) == errno.ENOENT
        monkeypatch.setattr(trio.to_thread, "run_sync", None)
        assert [await number(operations, b"d", name) for name in names] == before
        assert (await operations.lookup(folder, b"m", None)).st_size == len(data)
        assert await refusal(operations.lookup(folder, b"missing", None)) == errno.ENOENT
        assert await operations.listxattr(before[1], None) == []
        monkeypatch.undo()
        assert await operations.listxattr(before[0], None) == [b"user.x"]
        # Seen though no second has passed: every change shows in a file's state.
        os.setxattr(root / "d/m.brv", "user.z", b"1")
        os.chmod(root / "d/raw", 0o400)
        add_archive(root / "d/missing.brv", [noise(5)])
        changed = await number(operations, b"d", b"m")
        assert changed not in before
        assert await operations.listxattr(changed, None) == [b"user.z"]
        assert stat.S_IMODE((await operations.lookup(folder, b"raw", None)).st_mode) == 0o400
        assert (await operations.lookup(folder, b"missing", None)).st_size == 5

    serving(root, test)


def test_what_has_just_changed_is_looked_up_by_a_thread(root: Path) -> None:
    """It may change again without that showing in the times."""
    (root / "raw").write_bytes(b"plain")

    async def test(operations: Operations) -> None:
        inode = await number(operations, b"raw")
        assert operations.inodes[inode].looked is None

    serving(root, test)


def test_the_backing_file_is_opened_for_reading_only(root: Path) -> None:
    (root / "raw").write_bytes(b"x" * 10)
    flags = os.O_DIRECT | os.O_APPEND | os.O_CREAT | os.O_EXCL

    async def test(operations: Operations) -> None:
        inode = await number(operations, b"raw")
        opened = await operations.open(inode, flags, None)
        (backing,) = operations.inodes[inode].open
        text = Path(f"/proc/self/fdinfo/{backing.file}").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("flags:")]
        assert int(line.split()[1], 8) & (os.O_ACCMODE | flags) == os.O_RDONLY
        assert await operations.read(opened.fh, 3, 4) == b"xxxx"
        await operations.release(opened.fh)

    serving(root, test)


def test_one_descriptor_for_all_handles_of_a_file(root: Path) -> None:
    add_archive(root / "m.brv", [noise(1000)])

    async def test(operations: Operations) -> None:
        inode = await number(operations, b"m")
        before = len(os.listdir("/proc/self/fd"))
        handles = [(await operations.open(inode, os.O_RDONLY, None)).fh for _ in range(10)]
        assert len(set(handles)) == 10
        assert len(os.listdir("/proc/self/fd")) == before + 1
        for handle in handles:
            await operations.release(handle)
        assert len(os.listdir("/proc/self/fd")) == before

    serving(root, test)


def test_a_changed_file_opens_without_the_old_pages(root: Path) -> None:
    (root / "raw").write_bytes(b"old")

    async def test(operations: Operations) -> None:
        inode = await number(operations, b"raw")
        first = await operations.open(inode, os.O_RDONLY, None)
        assert (await operations.open(inode, os.O_RDONLY, None)).keep_cache
        with (root / "raw").open("r+b") as file:
            file.write(b"new content")
        again = await operations.open(inode, os.O_RDONLY, None)
        assert not again.keep_cache
        assert (await operations.open(inode, os.O_RDONLY, None)).keep_cache
        assert (
            await operations.read(first.fh, 0, 100)
            == await operations.read(again.fh, 0, 100)
            == b"new content"
        )

    serving(root, test)


def test_a_replaced_file_is_looked_up_again_and_the_open_one_stays(root: Path) -> None:
    data = add_archive(root / "m.brv", [noise(1000, 1)])
    other = add_archive(root / "new", [noise(1500, 2)])

    async def test(operations: Operations) -> None:
        inode = await number(operations, b"m")
        opened = await operations.open(inode, os.O_RDONLY, None)
        (root / "new").rename(root / "m.brv")
        assert await refusal(operations.open(inode, os.O_RDONLY, None)) == errno.ESTALE
        assert bytes(await operations.read(opened.fh, 0, 2000)) == data
        assert (await operations.getattr(inode, None)).st_size == len(data)
        new = await operations.lookup(ROOT_INODE, b"m", None)
        assert new.st_ino != inode
        assert new.st_size == len(other)
        reopened = await operations.open(new.st_ino, os.O_RDONLY, None)
        assert bytes(await operations.read(reopened.fh, 0, 2000)) == other
        await operations.release(opened.fh)
        assert await refusal(operations.getattr(inode, None)) == errno.ESTALE

    serving(root, test)


def test_damage_of_the_head_fails_the_open_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, offset in (("head", 40), ("tail", -90), ("index", -110)):
        add_archive(root / f"{name}.brv", [noise(1000)])
        flip(root / f"{name}.brv", offset)

    async def test(operations: Operations) -> None:
        for name in (b"head", b"tail", b"index"):
            found = await operations.lookup(ROOT_INODE, name, None)
            assert found.st_size == 1000
            assert await refusal(operations.open(found.st_ino, os.O_RDONLY, None)) == errno.EIO
            assert (await operations.getattr(found.st_ino, None)).st_size == 1000
        await closed(operations)

    before = len(os.listdir("/proc/self/fd"))
    serving(root, test)
    assert len(os.listdir("/proc/self/fd")) == before
    assert {record.getMessage().split(":")[0] for record in caplog.records} == {
        "head.brv",
        "tail.brv",
        "index.brv",
    }


def test_dots(root: Path) -> None:
    (root / "a/b").mkdir(parents=True)

    async def test(operations: Operations) -> None:
        a = await number(operations, b"a")
        b = await number(operations, b"a", b"b")
        assert await number(operations, b".") == await number(operations, b"..") == ROOT_INODE
        assert await number(operations, b"a", b"..") == ROOT_INODE
        assert await number(operations, b"a", b"b", b"..") == a
        assert await number(operations, b"a", b"b", b".") == b
        await operations.forget([(a, operations.inodes[a].lookups)])
        assert await number(operations, b"a", b"b", b"..") == a
        await operations.forget([(inode, operations.inodes[inode].lookups) for inode in (a, b)])
        assert await refusal(operations.getattr(a, None)) == errno.ESTALE

    serving(root, test)


def test_a_listing_in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(10):
        add_archive(root / f"{index}.brv", [noise(10 + index)])
    (root / ".brevisfs").mkdir()
    told: list[tuple[bytes, int]] = []
    room = 0

    def reply(token: object, name: bytes, attributes: pyfuse3.EntryAttributes, place: int) -> bool:
        nonlocal room
        room -= 1
        if room >= 0:
            told.append((name, place))
        return room >= 0

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)

    async def test(operations: Operations) -> None:
        nonlocal room
        handle = await operations.opendir(ROOT_INODE, None)
        start, token = 0, pyfuse3.ReaddirToken()
        while True:
            room, before = 3, len(told)
            await operations.readdir(handle, start, token)
            if len(told) == before:
                break
            start = told[-1][1]
        assert [name for name, _ in told[:2]] == [b".", b".."]
        assert sorted(name for name, _ in told[2:]) == [b"%d" % index for index in range(10)]
        assert len(operations.inodes) == 11
        assert all(operations.inodes[n].lookups == 1 for n in range(2, 12))
        await operations.releasedir(handle)

    serving(root, test)


def test_everything_that_writes_is_refused(root: Path) -> None:
    (root / "raw").write_bytes(b"x")
    (root / "folder").mkdir()

    async def test(operations: Operations) -> None:
        file, folder = await number(operations, b"raw"), await number(operations, b"folder")
        attributes, nothing = pyfuse3.EntryAttributes(), cast(Any, None)
        requests = [
            operations.create(folder, b"n", 0o644, os.O_WRONLY, nothing),
            operations.mknod(folder, b"n", 0o644, 0, nothing),
            operations.mkdir(folder, b"n", 0o755, nothing),
            operations.symlink(folder, b"n", b"target", nothing),
            operations.link(file, folder, b"n", nothing),
            operations.unlink(ROOT_INODE, b"raw", None),
            operations.rmdir(ROOT_INODE, b"folder", None),
            operations.rename(ROOT_INODE, b"raw", folder, b"raw", 0, None),
            operations.setattr(file, attributes, nothing, None, nothing),
            operations.setxattr(file, b"user.a", b"b", None),
            operations.removexattr(file, b"user.a", None),
            *(operations.open(file, flags, None) for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC)),
        ]
        for request in requests:
            assert await refusal(request) == errno.EROFS
        opened = await operations.open(file, os.O_RDONLY, None)
        assert await refusal(operations.write(opened.fh, 0, b"y")) == errno.EBADF
        await operations.fsync(opened.fh, True)

    serving(root, test)
    assert (root / "raw").read_bytes() == b"x"


def test_attributes_of_ours_can_be_read_and_are_not_listed(root: Path) -> None:
    data = add_archive(root / "m.brv", [noise(1000)])
    (root / "raw").write_bytes(b"x")
    (root / "folder").mkdir()
    for path in (root / "m.brv", root / "raw", root / "folder", root):
        os.setxattr(path, "user.note", b"hello")
    os.setxattr(root / "raw", "user.brevisfs.state", b"copied from elsewhere")

    async def test(operations: Operations) -> None:
        m, raw, folder = [await number(operations, name) for name in (b"m", b"raw", b"folder")]
        opened = await operations.open(raw, os.O_RDONLY, None)
        for inode in (m, raw, folder, ROOT_INODE):
            assert await operations.listxattr(inode, None) == [b"user.note"]
            assert await operations.getxattr(inode, b"user.note", None) == b"hello"
            assert (
                await refusal(operations.getxattr(inode, b"user.brevisfs.nothing", None)) == pyfuse3.ENOATTR
            )
            assert await refusal(operations.getxattr(inode, b"user.nothing", None)) == errno.ENODATA
        await operations.release(opened.fh)

        async def ours(inode: int, name: bytes) -> bytes:
            return await operations.getxattr(inode, b"user.brevisfs." + name, None)

        assert await ours(m, b"state") == b"archive"
        assert int(await ours(m, b"stored")) == (root / "m.brv").stat().st_size
        assert int(await ours(m, b"original")) == len(data)
        assert await ours(raw, b"state") == b"raw"
        assert await refusal(ours(folder, b"state")) == pyfuse3.ENOATTR
        assert int(await ours(ROOT_INODE, b"pid")) == os.getpid()
        assert await ours(ROOT_INODE, b"store") == os.fsencode(root)
        assert json.loads(await ours(ROOT_INODE, b"stats"))["stray_exceptions"] == 0

    serving(root, test)


def test_a_number_never_told_is_stale(root: Path) -> None:
    async def test(operations: Operations) -> None:
        for request in (
            operations.getattr(77, None),
            operations.open(77, 0, None),
            operations.opendir(77, None),
        ):
            assert await refusal(request) == errno.ESTALE

    serving(root, test)
