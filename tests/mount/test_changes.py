"""What happens in the store itself while it is mounted."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.mount.conftest import Mounter
from tests.stores import add_archive, noise


def soon(condition: Callable[[], bool]) -> None:
    """Waits, a good deal longer than the kernel keeps names and attributes, for something to be seen."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the change was not seen"


def replace(path: Path, data: bytes) -> bytes:
    """Puts another archive in the place of one, by rename."""
    original = add_archive(path.with_name("new-file"), [data])
    path.with_name("new-file").rename(path)
    return original


def test_a_new_file_and_a_removed_one(mount: Mounter, store: Path) -> None:
    (store / "old").write_text("old")
    mounted = mount()
    assert os.listdir(mounted.path) == ["old"]
    data = add_archive(store / "new.brv", [noise(100)])
    (store / "old").unlink()
    soon(lambda: os.listdir(mounted.path) == ["new"])
    soon(lambda: not (mounted.path / "old").exists())
    assert (mounted.path / "new").read_bytes() == data


def test_a_replaced_file_opens_as_the_new_one(mount: Mounter, store: Path) -> None:
    old = add_archive(store / "m.brv", [noise(300_000, 1)])
    mounted = mount()
    path = mounted.path / "m"
    assert path.read_bytes() == old
    number = path.stat().st_ino
    new = replace(store / "m.brv", noise(400_000, 2))
    soon(lambda: path.stat().st_size == len(new))
    assert path.read_bytes() == new
    assert path.stat().st_ino != number


def test_of_the_same_size(mount: Mounter, store: Path) -> None:
    """Only the number and the times tell that the pages are another file's."""
    old = add_archive(store / "m.brv", [noise(300_000, 1)])
    mounted = mount()
    path = mounted.path / "m"
    assert path.read_bytes() == old
    new = replace(store / "m.brv", noise(300_000, 2))
    assert path.read_bytes() == new


def test_readers_of_the_old_file_keep_it(mount: Mounter, store: Path) -> None:
    old = add_archive(store / "m.brv", [noise(3_000_000, 1)])
    mounted = mount()
    path = mounted.path / "m"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:1000] == old[:1000]
        new = replace(store / "m.brv", noise(2_000_000, 2))
        soon(lambda: path.stat().st_size == len(new))
        assert path.read_bytes() == new
        assert mapped[:] == old
        assert os.fstat(file.fileno()).st_size == len(old)


def test_no_number_is_given_twice(mount: Mounter, store: Path) -> None:
    """The store's own filesystem gives the number of a removed file to the next one."""
    add_archive(store / "m.brv", [noise(100)])
    mounted = mount()
    numbers: list[int] = []
    for seed in range(10):
        new = replace(store / "m.brv", noise(100, seed))
        soon(lambda new=new: (mounted.path / "m").read_bytes() == new)  # type: ignore[misc]
        numbers.append((mounted.path / "m").stat().st_ino)
    assert len(set(numbers)) == len(numbers)


def test_from_raw_to_archive(mount: Mounter, store: Path) -> None:
    """What `pack` in the store does, and `unpack` after it."""
    data = noise(100_000)
    (store / "m").write_bytes(data)
    mounted = mount()
    assert (mounted.path / "m").read_bytes() == data
    add_archive(store / "m.brv", [data])
    (store / "m").unlink()
    soon(lambda: os.getxattr(mounted.path / "m", "user.brevisfs.state") == b"archive")
    assert (mounted.path / "m").read_bytes() == data
    (store / "m").write_bytes(data)
    soon(lambda: os.getxattr(mounted.path / "m", "user.brevisfs.state") == b"raw")
    assert (mounted.path / "m").read_bytes() == data
    assert os.listdir(mounted.path) == ["m"]


def test_a_moved_folder(mount: Mounter, store: Path) -> None:
    (store / "a").mkdir()
    data = add_archive(store / "a/m.brv", [noise(100)])
    mounted = mount()
    assert (mounted.path / "a/m").read_bytes() == data
    (store / "a").rename(store / "b")
    soon(lambda: (mounted.path / "b/m").exists())
    assert (mounted.path / "b/m").read_bytes() == data
    soon(lambda: not (mounted.path / "a").exists())
