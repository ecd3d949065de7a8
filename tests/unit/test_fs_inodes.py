"""Inode numbers: one file, one number, for as long as the mount lives."""

import errno
import os
from pathlib import Path

import pyfuse3
import pytest
from pyfuse3 import FUSEError

from brevisfs.fs._backing import Backing
from brevisfs.fs._inodes import Inode, Inodes
from brevisfs.store import Entry, Identity, Kind


def entry(path: Path, kind: Kind = Kind.RAW) -> Entry:
    status = path.lstat()
    name = os.fsencode(path.name)
    key = kind, status.st_dev, status.st_ino
    return Entry(name, name, kind, status.st_size, status, Identity.of(status), key, bare=False)


@pytest.fixture
def inodes(tmp_path: Path) -> Inodes:
    top = entry(tmp_path)
    return Inodes(Inode(pyfuse3.ROOT_INODE, top.key, top.identity, is_folder=True))


def known(inodes: Inodes, path: Path, kind: Kind = Kind.RAW) -> Inode:
    inode = inodes.assign(inodes.root, entry(path, kind))
    inode.lookups += 1
    return inode


def write(path: Path, text: str = "x") -> Path:
    path.write_text(text)
    return path


def test_one_file_one_number(inodes: Inodes, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    first = known(inodes, a)
    assert known(inodes, a) is first
    assert first.lookups == 2
    assert len({first.number, known(inodes, b).number, pyfuse3.ROOT_INODE}) == 3


def test_links_of_one_file_are_one_inode(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    os.link(a, tmp_path / "b")
    assert known(inodes, a) is known(inodes, tmp_path / "b")


def test_raw_and_archive_are_two(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    assert known(inodes, a, Kind.RAW).number != known(inodes, a, Kind.ARCHIVE).number


def test_a_replacement_gets_a_number_of_its_own(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    numbers = {known(inodes, a).number}
    for _ in range(20):
        write(tmp_path / "new").rename(a)
        numbers.add(known(inodes, a).number)
    assert len(numbers) == 21


def test_the_same_backing_inode_in_another_state_is_another_file(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    old = known(inodes, a)
    os.utime(a, ns=(5, 5))
    new = known(inodes, a)
    assert new.number != old.number
    assert not old.is_meant_by(entry(a))


def test_while_it_is_open_it_is_the_same_file(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    inode = known(inodes, a)
    inode.open.append(Backing("a", Kind.RAW, Identity.of(a.stat()), -1))
    os.utime(a, ns=(5, 5))
    assert known(inodes, a) is inode
    write(tmp_path / "new").rename(a)
    assert known(inodes, a) is not inode


def test_a_folder_that_changes_is_the_same(inodes: Inodes, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    inode = known(inodes, folder)
    write(folder / "x")
    assert known(inodes, folder) is inode


def test_forgotten_is_gone_and_found_again_is_the_same_number(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    inode = known(inodes, a)
    known(inodes, a)
    inodes.forget([(inode.number, 1)])
    assert inodes[inode.number] is inode
    inodes.forget([(inode.number, 1), (pyfuse3.ROOT_INODE, 7), (999, 1)])
    with pytest.raises(FUSEError) as caught:
        inodes[inode.number]
    assert caught.value.errno == errno.ESTALE
    assert len(inodes) == 1
    again = known(inodes, a)
    assert (again.number, again.lookups) == (inode.number, 1)


def test_forgotten_and_replaced_is_a_new_number(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    inode = known(inodes, a)
    inodes.forget([(inode.number, 1)])
    os.utime(a, ns=(5, 5))
    assert known(inodes, a).number > inode.number


def test_the_trail_follows_a_moved_folder(inodes: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    a = known(inodes, tmp_path / "a")
    b = inodes.assign(a, entry(tmp_path / "a/b"))
    x = inodes.assign(b, entry(write(tmp_path / "a/b/x")))
    assert [step.name for step in b.trail()] == [b"a", b"b"]
    assert x.place() == (b, b"x")
    (tmp_path / "a/b").rename(tmp_path / "c")
    assert known(inodes, tmp_path / "c") is b
    assert [step.name for step in x.place()[0].trail()] == [b"c"]


def test_a_loop_of_folders_is_stale(inodes: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    a = known(inodes, tmp_path / "a")
    b = inodes.assign(a, entry(tmp_path / "a/b"))
    a.places = [(b, b"a")]
    with pytest.raises(FUSEError):
        b.trail()


def test_a_removed_folder_is_not_the_next_of_its_number(inodes: Inodes, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    inode = known(inodes, folder)
    inodes.unlinked(inodes.root, b"folder")
    assert known(inodes, folder) is not inode


def test_a_file_keeps_its_number_when_it_is_moved_changed_and_packed(inodes: Inodes, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), tmp_path / "b"
    inode = known(inodes, a)
    a.rename(b)
    inodes.moved(inodes.root, b"a", inodes.root, b"b")
    os.utime(b, ns=(5, 5))
    inodes.refresh(inode, b.stat())
    assert known(inodes, b) is inode
    archive = write(tmp_path / "b.brv", "packed")
    inodes.rebind(inode, Kind.ARCHIVE, archive.stat())
    status = archive.stat()
    key = Kind.ARCHIVE, status.st_dev, status.st_ino
    found = Entry(b"b", b"b.brv", Kind.ARCHIVE, 1, status, Identity.of(status), key, bare=False)
    assert inodes.assign(inodes.root, found) is inode
    assert inode.places == [(inodes.root, b"b")]
    assert inodes.at(inodes.root, b"a") is None


def test_an_older_state_does_not_replace_a_newer_one(inodes: Inodes, tmp_path: Path) -> None:
    a = write(tmp_path / "a")
    inode = known(inodes, a)
    before = a.stat()
    os.utime(a, ns=(5, 5))
    inodes.refresh(inode, a.stat())
    inodes.refresh(inode, before)
    assert inode.identity == Identity.of(a.stat())


def test_exchanged_names(inodes: Inodes, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    folder = known(inodes, tmp_path / "d")
    a = known(inodes, write(tmp_path / "a"))
    x = inodes.assign(folder, entry(write(tmp_path / "d/x")))
    x.lookups += 1
    inodes.exchanged(inodes.root, b"a", folder, b"x")
    assert (a.places, x.places) == ([(folder, b"x")], [(inodes.root, b"a")])
    inodes.exchanged(inodes.root, b"a", folder, b"unknown")
    assert x.places == [(folder, b"unknown")]
    assert inodes.at(inodes.root, b"a") is None


def test_a_parent_stays_known_as_long_as_a_child_is(inodes: Inodes, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    folder = known(inodes, tmp_path / "d")
    x = inodes.assign(folder, entry(write(tmp_path / "d/x")))
    x.lookups += 1
    inodes.forget([(folder.number, 1)])
    assert inodes[folder.number] is folder
    inodes.forget([(x.number, 1)])
    assert len(inodes) == 1
