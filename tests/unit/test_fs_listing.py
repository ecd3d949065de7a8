"""Listings and what programs ask about each file of one are answered from memory."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyfuse3
import pytest
import trio
from pyfuse3 import FUSEError
from trio.testing import MockClock

from brevisfs._native import folder as native
from brevisfs.archive import Reader
from brevisfs.fs._operations import Operations
from brevisfs.fs._reads import SMALLEST_BUDGET, Reads
from brevisfs.store import Entry, Store, begin_session
from tests.stores import add_archive, noise


@contextmanager
def operations(root: Path, *, writable: bool = False) -> Iterator[Operations]:
    with Store(root) as store, ExitStack() as held:
        reads = Reads(SMALLEST_BUDGET, 1, Reader)
        try:
            yield Operations(store, reads, begin_session(store, held) if writable else None)
        finally:
            reads.front.end()


def test_an_archive_is_opened_once_and_never_again_while_it_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {b"%d" % number: number * 100 + 1 for number in range(20)}
    for name, size in sizes.items():
        add_archive(tmp_path / f"{os.fsdecode(name)}.brv", [noise(size)])
    opened: list[bytes] = []
    real = native.look_at

    def look_and_note(
        folder: int, names: Sequence[bytes], states: Sequence[bytes], inside: Sequence[bool]
    ) -> list[tuple[int, bool, bool]]:
        opened.extend(name for name, opens in zip(names, inside, strict=True) if opens)
        return real(folder, names, states, inside)

    monkeypatch.setattr(native, "look_at", look_and_note)
    with Store(tmp_path) as store:
        for count in (20, 0, 0):
            assert {entry.name: entry.size for entry in store.entries(store.root)} == sizes
            assert len(opened) == count
            opened.clear()
        assert store.find(store.root, b"7").size == sizes[b"7"]
        assert not opened
        os.utime(tmp_path / "3.brv", ns=(0, 0))
        store.entries(store.root)
        assert opened == [b"3.brv"]


def test_files_without_attributes_are_not_asked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_archive(tmp_path / "plain.brv", [noise(100)])
    add_archive(tmp_path / "tagged.brv", [noise(100)])
    os.setxattr(tmp_path / "tagged.brv", "user.tag", b"yes")
    asked: list[bytes] = []
    real = os.getxattr

    def get_and_note(path: Any, name: Any, **keywords: Any) -> bytes:
        asked.append(name)
        return real(path, name, **keywords)

    monkeypatch.setattr(os, "getxattr", get_and_note)

    async def attribute(served: Operations, name: bytes) -> bytes | int:
        found = await served.lookup(pyfuse3.ROOT_INODE, name)
        try:
            return await served.getxattr(found.st_ino, b"user.tag")
        except FUSEError as error:
            return int(error.errno)

    async def test() -> None:
        with operations(tmp_path) as served:
            assert await attribute(served, b"plain") == pyfuse3.ENOATTR
            assert not asked
            assert await attribute(served, b"tagged") == b"yes"
            assert asked == [b"user.tag"]
            os.setxattr(tmp_path / "plain.brv", "user.tag", b"now")
            assert await attribute(served, b"plain") == b"now"

    trio.run(test)


def test_a_listing_does_not_hide_what_a_folder_gets_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    room = iter((True, True, False, True))
    monkeypatch.setattr(pyfuse3, "readdir_reply", lambda *_: next(room))
    token: Any = None

    async def test() -> None:
        with operations(tmp_path, writable=True) as served:
            folder = (await served.lookup(pyfuse3.ROOT_INODE, b"folder")).st_ino
            assert await served.listxattr(folder) == []
            listing = await served.opendir(pyfuse3.ROOT_INODE)
            await served.readdir(listing, 0, token)
            await served.setxattr(folder, b"user.tag", b"yes")
            await served.readdir(listing, 2, token)
            assert await served.listxattr(folder) == [b"user.tag"]

    trio.run(test)


class Listed:
    """In the place of pyfuse3's replies: what a listing says, so many entries at a time, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pyfuse3, "readdir_reply", self._reply)
        self.said: dict[bytes, pyfuse3.EntryAttributes] = {}
        self._place = self._room = 0

    def _reply(self, _: Any, name: bytes, attributes: pyfuse3.EntryAttributes, place: int) -> bool:
        self._room -= 1
        if self._room >= 0:
            self.said[name] = attributes
            self._place = place
        return self._room >= 0

    async def some(self, served: Operations, listing: int, room: int) -> int:
        """Goes on with a listing; returns how many entries it has said."""
        self._room, before = room, len(self.said)
        token: Any = None
        await served.readdir(listing, self._place, token)
        return len(self.said) - before

    async def rest(self, served: Operations, listing: int) -> None:
        while await self.some(served, listing, 100):
            continue


def test_a_listing_goes_on_after_many_names_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(500):
        (tmp_path / str(number)).touch()
    listed = Listed(monkeypatch)

    async def test() -> None:
        with operations(tmp_path, writable=True) as served:
            listing = await served.opendir(pyfuse3.ROOT_INODE)
            await listed.some(served, listing, 5)
            names = served.listings[listing].names
            for name in names[5:400]:
                await served.unlink(pyfuse3.ROOT_INODE, name)
            await listed.rest(served, listing)
            assert set(names[400:]) <= listed.said.keys()
            assert not set(names[5:400]) & listed.said.keys()

    trio.run(test)


def test_a_listing_that_pauses_tells_what_the_store_has_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    listed, clock = Listed(monkeypatch), MockClock()

    async def test() -> None:
        with operations(tmp_path) as served:
            listing = await served.opendir(pyfuse3.ROOT_INODE)
            await listed.some(served, listing, 5)
            before = set(listed.said)
            for name in {b"%d" % number for number in range(300)} - before:
                (tmp_path / os.fsdecode(name)).write_bytes(b"more")
                os.setxattr(tmp_path / os.fsdecode(name), "user.tag", b"yes")
            clock.jump(0.4)
            await listed.some(served, listing, 5)
            early = set(listed.said) - before
            assert all(0 < listed.said[name].attr_timeout <= 0.6 for name in early)
            clock.jump(0.4)
            await listed.rest(served, listing)
            for name in set(listed.said) - before - early:
                assert listed.said[name].st_size == 4
                assert await served.listxattr(listed.said[name].st_ino) == [b"user.tag"]

    trio.run(test, clock=clock)


def test_a_listing_does_not_tell_times_of_before_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    listed, somebody = Listed(monkeypatch), cast(Any, SimpleNamespace(uid=os.getuid(), gid=os.getgid()))

    async def test() -> None:
        with operations(tmp_path, writable=True) as served:
            folder = (await served.lookup(pyfuse3.ROOT_INODE, b"folder")).st_ino
            listing = await served.opendir(pyfuse3.ROOT_INODE)
            await listed.some(served, listing, 2)
            await served.mkdir(folder, b"new", 0o755, somebody)
            await listed.some(served, listing, 1)
            answer = listed.said[b"folder"]
            assert answer.attr_timeout == 0 or answer.st_mtime_ns == (tmp_path / "folder").stat().st_mtime_ns

    trio.run(test)


def test_what_has_not_changed_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        add_archive(tmp_path / f"{number}.brv", [noise(number + 1)])
    looked: list[bytes] = []
    real = time.time_ns
    look_at = Store._look_at

    def look_and_note(store: Store, folder: int, files: Sequence[tuple[bytes, bytes]]) -> list[Entry]:
        looked.extend(file for file, _ in files)
        return look_at(store, folder, files)

    monkeypatch.setattr(Store, "_look_at", look_and_note)
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10**9)
    with Store(tmp_path) as store:
        first = store.entries(store.root)
        assert len(looked) == 5
        assert store.entries(store.root) == first
        assert len(looked) == 5


def test_a_listing_shows_what_has_changed_since_the_last(tmp_path: Path) -> None:
    add_archive(tmp_path / "a.brv", [noise(100)])
    (tmp_path / "b").write_bytes(b"12")
    with Store(tmp_path) as store:

        def seen() -> dict[bytes, tuple[int, int, bool]]:
            return {e.name: (e.size, e.status.st_mode & 0o777, e.bare) for e in store.entries(store.root)}

        (tmp_path / "b").chmod(0o600)
        assert seen()[b"b"] == (2, 0o600, True)
        (tmp_path / "b").chmod(0o640)
        assert seen()[b"b"] == (2, 0o640, True)
        os.setxattr(tmp_path / "b", "user.tag", b"")
        assert seen()[b"b"] == (2, 0o640, False)
        (tmp_path / "b").write_bytes(b"123")
        assert seen()[b"b"][0] == 3
        add_archive(tmp_path / "new", [noise(70)])
        os.rename(tmp_path / "new", tmp_path / "a.brv")
        assert seen()[b"a"][0] == 70
        os.rename(tmp_path / "a.brv", tmp_path / "c.brv")
        (tmp_path / "b").unlink()
        assert seen().keys() == {b"c"}
