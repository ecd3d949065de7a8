"""Every way of reading gives the original's bytes."""

import ctypes
import hashlib
import mmap
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Mount, Mounter
from tests.stores import EXTENT, add_archive, noise


@pytest.fixture
def mounted(mount: Mounter, store: Path, model: tuple[Path, Path]) -> Mount:
    shutil.copy(model[1], store)
    shutil.copy(model[0], store / "raw.safetensors")
    return mount()


@pytest.fixture(params=["m.safetensors", "raw.safetensors"])
def file(mounted: Mount, request: pytest.FixtureRequest) -> Path:
    return mounted.path / str(request.param)


@pytest.fixture
def data(model: tuple[Path, Path]) -> bytes:
    return model[0].read_bytes()


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ranges(size: int, count: int, seed: int = 1) -> Iterator[tuple[int, int]]:
    chance = random.Random(seed)
    for _ in range(count):
        length = chance.choice([1, 7, 512, 4095, 4097, 100_000, EXTENT + 1])
        yield chance.randrange(size), length


def test_whole(file: Path, data: bytes) -> None:
    assert file.stat().st_size == len(data)
    assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(data).digest()
    with file.open("rb") as stream:
        assert b"".join(iter(lambda: stream.read(1_000_003), b"")) == data


def test_odd_offsets_and_sizes(file: Path, data: bytes) -> None:
    with opened(file) as descriptor:
        for offset, size in ranges(len(data), 100):
            assert os.pread(descriptor, size, offset) == data[offset : offset + size]


def test_at_and_past_the_end(file: Path, data: bytes) -> None:
    with opened(file) as descriptor:
        assert os.pread(descriptor, 100, len(data) - 3) == data[-3:]
        assert os.pread(descriptor, 100, len(data)) == b""
        assert os.pread(descriptor, 100, len(data) + 10**9) == b""
        assert os.lseek(descriptor, 0, os.SEEK_END) == len(data)


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_mapped(file: Path, data: bytes, flags: int) -> None:
    with opened(file) as descriptor:
        mapped = mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ)
    with mapped:
        for offset, size in ranges(len(data), 50):
            assert mapped[offset : offset + size] == data[offset : offset + size]
        assert mapped[:] == data


def test_mapped_private_and_written(file: Path, data: bytes) -> None:
    with opened(file) as descriptor:
        mapped = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with mapped:
        mapped[5000:5003] = b"new"
        assert mapped[4990:5010] == data[4990:5000] + b"new" + data[5003:5010]
    assert file.read_bytes() == data


def test_pread_from_threads(file: Path, data: bytes) -> None:
    with opened(file) as descriptor, ThreadPoolExecutor(8) as threads:

        def same(where: tuple[int, int]) -> bool:
            offset, size = where
            return os.pread(descriptor, size, offset) == data[offset : offset + size]

        assert all(threads.map(same, ranges(len(data), 400)))


def test_sendfile(file: Path, data: bytes, tmp_path: Path) -> None:
    with opened(file) as source, opened(tmp_path / "copy", os.O_RDWR | os.O_CREAT) as target:
        sent = 0
        while count := os.sendfile(target, source, sent, len(data)):
            sent += count
        assert os.pread(target, len(data) + 1, 0) == data


def test_copy_file_range_and_cp(file: Path, data: bytes, tmp_path: Path) -> None:
    subprocess.run(["cp", "--sparse=always", file, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == data


def test_direct(file: Path, data: bytes) -> None:
    """O_DIRECT at 512-byte alignment, as streamers read."""
    buffer = mmap.mmap(-1, 4 << 20)
    with opened(file, os.O_RDONLY | os.O_DIRECT) as descriptor:
        for offset, size in [(0, 512), (512, 4096), (EXTENT - 512, 1024), (1536, 5 << 19)]:
            assert os.preadv(descriptor, [memoryview(buffer)[:size]], offset) == size
            assert buffer[:size] == data[offset : offset + size]
        end = len(data) // 512 * 512
        assert os.preadv(descriptor, [memoryview(buffer)[:4096]], end) == len(data) - end


def test_advice_changes_nothing(file: Path, data: bytes) -> None:
    with opened(file) as descriptor:
        for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED):
            os.posix_fadvise(descriptor, 0, 0, advice)
            assert os.pread(descriptor, 1000, 12_345) == data[12_345:13_345]


def test_a_descriptor_outlives_its_first_close(file: Path, data: bytes) -> None:
    """As safetensors does: open, map, close, read."""
    with opened(file) as descriptor:
        again = os.dup(descriptor)
    assert os.pread(again, 10, 100) == data[100:110]
    os.close(again)


def test_many_readers_of_one_extent_decode_it_once(mount: Mounter, store: Path) -> None:
    data = add_archive(store / "m.brv", [noise(EXTENT)])
    mounted = mount()
    start = threading.Barrier(8)

    def read(part: int) -> bool:
        # Without the page cache, so that every reader reaches the daemon.
        buffer = mmap.mmap(-1, 4096)
        with opened(mounted.path / "m", os.O_RDONLY | os.O_DIRECT) as descriptor:
            start.wait()
            os.preadv(descriptor, [buffer], part * 4096)
        return buffer[:] == data[part * 4096 : (part + 1) * 4096]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    stats = mounted.stats()
    assert stats["decoded"] == 1
    assert stats["found"] + stats["joined"] == 7


def test_pages_stay_over_an_open(mounted: Mount, data: bytes) -> None:
    path = mounted.path / "m.safetensors"
    assert path.read_bytes() == data
    before = mounted.stats()
    assert path.read_bytes() == data
    after = mounted.stats()
    assert (after["decoded"], after["found"]) == (before["decoded"], before["found"])


def test_archives_are_never_mapped(mounted: Mount, data: bytes) -> None:
    """A file cut short under a mapping would kill the daemon."""
    assert (mounted.path / "m.safetensors").read_bytes() == data
    with opened(mounted.path / "m.safetensors") as descriptor:
        os.pread(descriptor, 1, 0)
        maps = Path(f"/proc/{mounted.daemon}/maps").read_text()
        assert str(mounted.store) not in maps
        files = [os.readlink(link) for link in Path(f"/proc/{mounted.daemon}/fd").iterdir()]
        assert str(mounted.store / "m.safetensors.brv") in files


def test_the_budget_bounds_the_memory(mount: Mounter, store: Path) -> None:
    """Many times the budget is read, through the cache and past the kernel's; the daemon does not grow."""
    size = 8 * EXTENT
    for index in range(12):
        add_archive(store / f"{index}.brv", [noise(size, index)])
    budget = 32 << 20
    mounted = mount(cache_size=budget)

    def memory() -> int:
        lines = Path(f"/proc/{mounted.daemon}/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    before = memory()
    for index in range(12):
        assert (mounted.path / str(index)).read_bytes() == noise(size, index)
        stats = mounted.stats()
        assert stats["cached_bytes"] + stats["program_bytes"] + stats["index_bytes"] <= budget
    # What a larger request and the allocator take beside the budget.
    assert memory() - before < budget + (16 << 20)


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_small_files(mount: Mounter, store: Path, size: int) -> None:
    data = add_archive(store / "m.brv", [noise(size)] if size else [])
    (store / "raw").write_bytes(data)
    mounted = mount()
    for name in ("m", "raw"):
        path = mounted.path / name
        assert path.stat().st_size == size
        assert path.read_bytes() == data


def test_readahead(mounted: Mount, data: bytes) -> None:
    """readahead(2), which loaders call before they map."""
    libc = ctypes.CDLL(None, use_errno=True)
    with opened(mounted.path / "m.safetensors") as descriptor:
        assert libc.readahead(descriptor, ctypes.c_int64(0), ctypes.c_size_t(len(data))) == 0
        assert os.pread(descriptor, len(data), 0) == data
