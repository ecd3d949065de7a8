"""The threads that answer reads without the interpreter, and a mount that has to do without them."""

import errno
import mmap
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brevisfs.fs import _background, umount
from tests.mount.conftest import Mount, Mounter
from tests.stores import add_archive, block_at, flip, noise

SLOW = "reads go through Python"
SECTIONS = [noise(700_001, 1), noise(3_000_000, 2), noise(10, 3), noise(900_000, 4)]

WITHOUT = """
import sys
from brevisfs._native import front
front.take_the_place_of_libfuse = lambda: None
from brevisfs.fs import daemon
daemon.main(*sys.argv[1:])
"""


@pytest.fixture(params=["front", "Python"])
def mounted(
    request: pytest.FixtureRequest, mount: Mounter, store: Path, monkeypatch: pytest.MonkeyPatch
) -> Mount:
    """A store with the archive m, its twin raw, and bad, mounted with and without a front."""
    (store / "raw").write_bytes(add_archive(store / "m.brv", SECTIONS))
    add_archive(store / "bad.brv", SECTIONS)
    flip(store / "bad.brv", block_at(store / "bad.brv", 1, 1) + 5)
    if request.param == "Python":
        start = subprocess.Popen

        def without(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
            at = command.index("-m")
            return start([*command[:at], "-c", WITHOUT, *command[at + 2 :]], **how)

        theirs = SimpleNamespace(Popen=without, DEVNULL=subprocess.DEVNULL)
        monkeypatch.setattr(_background, "subprocess", theirs)
    made = mount()
    assert made.log.read_text().count(SLOW) == (request.param == "Python")
    return made


def test_reads_are_right_and_counted(mounted: Mount) -> None:
    whole = b"".join(SECTIONS)
    for name in ("m", "raw"):
        assert (mounted.path / name).read_bytes() == whole
        with (mounted.path / name).open("rb") as file:
            for begin in range(0, len(whole), 333_333):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(file.fileno(), 5000, begin) == whole[begin : begin + 5000]
    assert 4 <= mounted.stats()["requests"] < 100
    assert mounted.stats()["failed"] == 0


def test_one_read_of_more_sections_than_are_planned_at_a_time(mounted: Mount, store: Path) -> None:
    whole = add_archive(store / "many.brv", [noise(500 + number, number) for number in range(1000)])
    direct = os.open(mounted.path / "many", os.O_RDONLY | os.O_DIRECT)
    with closing(mmap.mmap(-1, 1 << 20)) as room:
        for begin in (0, 77_824):
            count = os.preadv(direct, [room], begin)
            assert room[:count] == whole[begin : begin + (1 << 20)]
    os.close(direct)
    assert mounted.stats()["failed"] == 0


def test_damage_costs_what_it_touches(mounted: Mount) -> None:
    whole = b"".join(SECTIONS)
    with (mounted.path / "bad").open("rb") as file:
        good, lost = [], []
        for begin in range(0, len(whole), 4096):
            try:
                assert os.pread(file.fileno(), 4096, begin) == whole[begin : begin + 4096]
                good.append(begin)
            except OSError:
                lost.append(begin)
    assert len(good) > 700
    assert lost
    assert lost[-1] - lost[0] == (len(lost) - 1) * 4096
    assert mounted.log.read_text().count("ERROR bad.brv: ") == 1


def test_writing_and_reading_side_by_side(mounted: Mount) -> None:
    """Handles move from the archive to a raw file while others read by them."""
    whole = b"".join(SECTIONS)
    stop = threading.Event()
    change = 2_000_000

    def read(number: int) -> int:
        buffer = mmap.mmap(-1, 1 << 16)
        reads = 0
        descriptor = os.open(mounted.path / "m", os.O_RDONLY | (os.O_DIRECT if number % 2 else 0))
        try:
            while not stop.is_set() or not reads:
                begin = (number * 77 + reads * 13) % 60 * 4096
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                count = os.preadv(descriptor, [buffer], begin)
                assert buffer[:count] == whole[begin : begin + (1 << 16)]
                reads += 1
            assert os.pread(descriptor, 3, change) == b"new"
        finally:
            os.close(descriptor)
        return reads

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read, number) for number in range(4)]
        with (mounted.path / "m").open("r+b", buffering=0) as file:
            for step in range(20):
                assert os.pwrite(file.fileno(), b"%03d" % step, change) == 3
                assert os.pread(file.fileno(), 3, change) == b"%03d" % step
            os.pwrite(file.fileno(), b"new", change)
        stop.set()
        assert all(reader.result() for reader in readers)
    expected = bytearray(whole)
    expected[change : change + 3] = b"new"
    assert (mounted.path / "m").read_bytes() == expected


def test_a_mount_ends_while_it_is_read(mounted: Mount) -> None:
    with closing(mmap.mmap(-1, 1 << 20)) as buffer, (mounted.path / "m").open("rb", buffering=0) as file:
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    os.preadv(file.fileno(), [buffer], 0)
                except OSError:
                    return

        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read)
            try:
                umount(mounted.path, lazy=True)
            finally:
                ended.set()
            reading.result()


def test_questions_for_attributes_of_a_file_that_has_none(mounted: Mount) -> None:
    """Who answers them changes after some in a row; what is asked in between must be right all the same."""
    path = mounted.path / "m"
    for _ in range(3):
        os.listdir(mounted.path)
        for _ in range(20):
            with pytest.raises(OSError) as caught:
                os.getxattr(path, "user.tag")
            assert caught.value.errno == errno.ENODATA
            assert os.listxattr(path) == []
        assert os.getxattr(path, "user.brevisfs.state") == b"archive"
        with (mounted.path / "raw").open("rb") as file:
            assert file.read() == b"".join(SECTIONS)
        os.setxattr(path, "user.tag", b"yes")
        assert os.getxattr(path, "user.tag") == b"yes"
        assert os.listxattr(path) == ["user.tag"]
        os.removexattr(path, "user.tag")
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(os.listxattr, [path] * 50)) == [[]] * 50
