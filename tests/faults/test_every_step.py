"""A change of the store that is cut off at any step is done or not done, here and in a copy of the store."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from brevisfs.archive import Reader
from brevisfs.store import (
    Changes,
    Identity,
    Kind,
    NeedsRaw,
    Private,
    SourceMoved,
    Store,
    Temporary,
    _changes,
    begin,
    copy_metadata,
    equal_losers,
    links,
    settle,
    sync_folder,
    unpack_links,
    walk,
)
from tests.faults.dying import steps_of
from tests.stores import add_archive, noise, raw_archive

A, B = noise(3000, 1), noise(2000, 2)


class File(NamedTuple):
    """What the mount shows of a file."""

    content: bytes
    mode: int
    mtime: int
    attributes: tuple[tuple[str, bytes], ...]


State = dict[str, File]


@contextmanager
def changing(root: Path) -> Iterator[Changes]:
    with Store(root) as store, Private(store.root) as private:
        yield Changes(store, private)


def shown(root: Path) -> State:
    """All files that a mount of the store shows, by path."""
    found: State = {}
    with Store(root) as store:
        for trail, entries in walk(store):
            for entry, _ in entries:
                if not stat.S_ISREG(entry.status.st_mode):
                    continue
                with store.folder(trail) as folder:
                    file = store.open(folder, entry)
                data = bytearray(entry.size)
                if entry.kind is Kind.ARCHIVE:
                    Reader(file).read_into(0, data)
                else:
                    data[:] = os.pread(file, entry.size, 0)
                attributes = tuple((name, os.getxattr(file, name)) for name in sorted(os.listxattr(file)))
                os.close(file)
                path = os.fsdecode(b"/".join([*(step.name for step in trail), entry.name]))
                mode = stat.S_IMODE(entry.status.st_mode)
                found[path] = File(bytes(data), mode, entry.status.st_mtime_ns, attributes)
    return found


def recover(root: Path) -> None:
    """What a mount does when it starts."""
    with changing(root) as changes:
        begin(changes)
        for trail, found in walk(changes.store):
            for winner, losers in found:
                with changes.store.folder(trail) as folder:
                    equal = equal_losers(changes.store, folder, winner, losers)
                    settle(changes, folder, winner.name, equal)


def lost(root: Path) -> list[bytes]:
    """What files in lost+found hold."""
    found = []
    for path in (root / ".brevisfs/lost+found").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            with path.open("rb") as file:
                if path.name.endswith((".brv", ".brv+")):
                    reader = Reader(file.fileno())
                    data = bytes(reader.size)
                    out = bytearray(data)
                    reader.read_into(0, out)
                    data = bytes(out)
            found.append(data)
    return found


def add(root: Path, path: str, kind: str, data: bytes) -> None:
    """A file of the mount in one of the three states of a name."""
    place = root / path
    if kind == "raw":
        place.write_bytes(data)
    elif kind in ("archive", "pending"):
        place = root / (path + {"archive": ".brv", "pending": ".brv+"}[kind])
        add_archive(place, [data])
    if kind != "none":
        os.chmod(place, 0o640 if data == A else 0o604)
        os.setxattr(place, "user.who", b"A" if data == A else b"B")
        os.utime(place, ns=(1, 10**18 + len(data)))


def cut_off_everywhere(tmp_path: Path, make: Callable[[Path], None], work: Callable[[Changes], None]) -> None:
    """Does `work` on a store made by `make`, cut off at each of its steps, and looks at what is shown."""
    whole = tmp_path / "whole"
    whole.mkdir()
    make(whole)
    old = shown(whole)

    def run(root: Path) -> None:
        with changing(root) as changes:
            work(changes)

    # Counting the steps is doing all of them.
    steps = steps_of(lambda: run(whole), -1)
    assert steps is not None
    new = shown(whole)
    assert not lost(whole)
    recover(whole)
    assert shown(whole) == new
    assert sorted(os.listdir(whole / ".brevisfs")) == ["lost+found", "tmp"]
    for step in range(steps):
        root = tmp_path / f"step{step}"
        root.mkdir()
        make(root)
        assert steps_of(lambda root=root: run(root), step) is None  # type: ignore[misc]
        copy = tmp_path / f"copy{step}"
        subprocess.run(["cp", "-a", root, copy], check=True)
        assert shown(root) in (old, new), f"cut off before step {step}"
        for each in (root, copy):
            recover(each)
            after = shown(each)
            assert after in (old, new), f"cut off before step {step}"
            assert os.listdir(each / ".brevisfs/tmp") == []
            assert "intent" not in os.listdir(each / ".brevisfs")
            names = [path.name for path in each.rglob("*") if ".brevisfs" not in path.parts]
            assert not any(name.endswith(".brv+") for name in names)
            kept = [file.content for file in (*old.values(), *new.values())]
            assert all(data in kept for data in lost(each))
            shutil.rmtree(each)


@pytest.mark.parametrize("folder", ["", "d/"])
@pytest.mark.parametrize("target", ["none", "raw", "archive", "pending"])
@pytest.mark.parametrize("source", ["raw", "archive", "pending"])
def test_rename(tmp_path: Path, source: str, target: str, folder: str) -> None:
    def make(root: Path) -> None:
        (root / "d").mkdir()
        add(root, "a", source, A)
        add(root, f"{folder}b", target, B)

    def work(changes: Changes) -> None:
        with changes.store.folder([]) as here, changes.store.folder_at([b"d"] if folder else []) as there:
            changes.rename(here, b"a", there, b"b", replace=True)

    cut_off_everywhere(tmp_path, make, work)


@pytest.mark.parametrize("kind", ["raw", "archive"])
def test_exchange(tmp_path: Path, kind: str) -> None:
    def make(root: Path) -> None:
        add(root, "a", kind, A)
        add(root, "b", kind, B)

    def work(changes: Changes) -> None:
        with changes.store.folder([]) as here:
            changes.exchange(here, b"a", here, b"b")

    cut_off_everywhere(tmp_path, make, work)


@pytest.mark.parametrize("kind", ["raw", "archive", "pending"])
def test_unlink_and_link(tmp_path: Path, kind: str) -> None:
    def make(root: Path) -> None:
        add(root, "a", kind, A)

    def unlink(changes: Changes) -> None:
        with changes.store.folder([]) as here:
            changes.remove(here, b"a")

    def link(changes: Changes) -> None:
        with changes.store.folder([]) as here:
            changes.link(here, b"a", here, b"b")

    for name, work in (("unlink", unlink), ("link", link)):
        (tmp_path / name).mkdir()
        cut_off_everywhere(tmp_path / name, make, work)


def publish(changes: Changes) -> None:
    """What a mount does with `a` once a worker has packed it."""
    with changes.store.folder([]) as here:
        entry = changes.store.find(here, b"a")
        source = changes.store.open(here, entry)
        archive = given(changes, source, raw_archive([A]))
        changes.publish(here, b"a", archive, Identity.of(os.fstat(source)))


def unpack(changes: Changes) -> None:
    """What a mount does with `a`, and its other names, before it is written to."""
    with changes.store.folder([]) as here:
        entry = changes.store.find(here, b"a")
        source = changes.store.open(here, entry)
        plain = given(changes, source, A)
        if entry.status.st_nlink == 1:
            changes.unpack(here, entry, plain)
            return
    places = [([step.name for step in trail], name) for trail, name in links(changes.store, entry.status)]
    assert len(places) == entry.status.st_nlink
    unpack_links(changes, places, os.fstat(source), plain)


def given(changes: Changes, source: int, data: bytes) -> Temporary:
    """A temporary file with other bytes and the metadata of an open one, on disk."""
    made = changes.private.temporary()
    os.write(made.file, data)
    copy_metadata(source, made.file)
    os.fsync(made.file)
    return made


def test_publish(tmp_path: Path) -> None:
    cut_off_everywhere(tmp_path, lambda root: add(root, "a", "raw", A), publish)


def test_publish_of_a_file_whose_mode_is_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chmod_and_sync(folder: int) -> None:
        os.chmod(b"a", 0o600, dir_fd=folder)
        sync_folder(folder)

    def work(changes: Changes) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(_changes, "sync_folder", chmod_and_sync)
            with pytest.raises(SourceMoved):
                publish(changes)
        publish(changes)

    cut_off_everywhere(tmp_path, lambda root: add(root, "a", "raw", A), work)


@pytest.mark.parametrize("kind", ["archive", "pending"])
def test_unpack(tmp_path: Path, kind: str) -> None:
    cut_off_everywhere(tmp_path, lambda root: add(root, "a", kind, A), unpack)


def with_three_names(root: Path) -> None:
    (root / "d").mkdir()
    add(root, "a", "archive", A)
    os.link(root / "a.brv", root / "b.brv")
    os.link(root / "a.brv", root / "d/c.brv+")


def test_unpack_of_an_archive_with_three_names(tmp_path: Path) -> None:
    cut_off_everywhere(tmp_path, with_three_names, unpack)


def test_names_that_are_moved_before_the_next_start(tmp_path: Path) -> None:
    """They are of the same file as the others still, and one of another file as large and old is not."""
    for step in count():
        root = tmp_path / f"step{step}"
        root.mkdir()
        with_three_names(root)
        add(root, "other", "archive", A)

        def run(root: Path = root) -> None:
            with changing(root) as changes:
                unpack(changes)

        if steps_of(run, step) is not None:
            break
        (root / "d").rename(root / "e")
        for name in ("b", "b.brv"):
            if (root / name).exists():
                (root / name).rename(root / "e" / name)
        recover(root)
        files = [path for path in root.rglob("*") if path.is_file() and ".brevisfs" not in path.parts]
        numbers = {path.name.removesuffix(".brv"): path.stat().st_ino for path in files}
        assert numbers["a"] == numbers["b"] == numbers["c"] != numbers["other"]
    assert step > 10


def test_what_an_archive_cannot_be_called(tmp_path: Path) -> None:
    add(tmp_path, "a", "archive", A)
    (tmp_path / "b.brv").write_text("a text")
    (tmp_path / "c.brv+").write_text("a text")
    with changing(tmp_path) as changes, changes.store.folder([]) as here:
        for name in (b"x" * 251, b"b", b"c"):
            with pytest.raises(NeedsRaw):
                changes.rename(here, b"a", here, name, replace=True)
            with pytest.raises(NeedsRaw):
                changes.link(here, b"a", here, name)
        changes.rename(here, b"a", here, b"x" * 250, replace=True)
    assert shown(tmp_path)["x" * 250].content == A


def test_losers_that_differ_are_kept(tmp_path: Path) -> None:
    add(tmp_path, "a", "raw", A)
    add(tmp_path, "a", "archive", B)
    add(tmp_path, "b", "pending", A)
    add(tmp_path, "b", "raw", A)
    recover(tmp_path)
    assert {name: file.content for name, file in shown(tmp_path).items()} == {"a": A, "b": A}
    assert lost(tmp_path) == [B]
    assert sorted(os.listdir(tmp_path)) == [".brevisfs", "a", "b.brv"]


def test_no_room_for_a_change_of_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has changed then, and nothing takes room."""
    add(tmp_path, "a", "archive", A)
    os.link(tmp_path / "a.brv", tmp_path / "b.brv")
    before = shown(tmp_path)
    with changing(tmp_path) as changes, changes.store.folder([]) as here:
        entry = changes.store.find(here, b"a")
        plain = changes.private.temporary()

        def full(file: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            unpack_links(changes, [([], b"a"), ([], b"b")], entry.status, plain)
        monkeypatch.undo()
        os.close(plain.file)
    assert shown(tmp_path) == before
    assert sorted(os.listdir(tmp_path / ".brevisfs")) == ["lost+found", "tmp"]
    assert os.listdir(tmp_path / ".brevisfs/tmp") == []
