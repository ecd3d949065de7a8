"""Damage costs what it touched: EIO for that, every other byte still reads."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from brevisfs._native import checksum
from tests.mount.conftest import Mount, Mounter
from tests.stores import BLOCK, add_archive, block_at, flip, noise, record_at

PAGE = 4096
SIZES = (3 * BLOCK + 1000, 9 * BLOCK, 2 * BLOCK)


@pytest.fixture
def data(store: Path) -> bytes:
    """The original of m: three sections of several blocks, over two and a half extents."""
    return add_archive(store / "m.brv", [noise(size, size) for size in SIZES])


def read(path: Path, offset: int, size: int, flags: int = 0) -> bytes | int:
    """The bytes, or the error number."""
    buffer = mmap.mmap(-1, size)
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        count = os.preadv(descriptor, [buffer], offset)
        return buffer[:count]
    except OSError as error:
        assert error.errno is not None
        return error.errno
    finally:
        os.close(descriptor)


def check(mounted: Mount, data: bytes, lost: range) -> None:
    """Exactly the bytes of `lost` cannot be read; by way of the page cache, their pages."""
    path = mounted.path / "m"
    assert path.stat().st_size == len(data)
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    for offset in range(0, len(data), PAGE):
        page = data[offset : offset + PAGE]
        touched = max(lost.start, offset) < min(lost.stop, offset + PAGE)
        assert read(path, offset, PAGE) == (errno.EIO if touched else page), offset
    for begin, end in ((0, lost.start), (lost.stop, len(data))):
        for offset in range(begin, end, 300_000):
            size = min(300_000, end - offset)
            assert read(path, offset, size, os.O_DIRECT) == data[offset : offset + size]
    for offset in (lost.start, lost.stop - 1):
        assert read(path, offset, 1, os.O_DIRECT) == errno.EIO
    assert read(path, max(0, lost.start - 10), 20, os.O_DIRECT) == errno.EIO


@pytest.mark.parametrize(("section", "block"), [(0, 0), (0, 3), (1, 4), (2, 1)])
def test_a_damaged_block(mount: Mounter, store: Path, data: bytes, section: int, block: int) -> None:
    flip(store / "m.brv", block_at(store / "m.brv", section, block) + 17)
    begin = sum(SIZES[:section]) + block * BLOCK
    mounted = mount()
    check(mounted, data, range(begin, min(begin + BLOCK, sum(SIZES[: section + 1]))))
    assert "m.brv: " in mounted.log.read_text()


def test_a_damaged_program_costs_its_tensor(mount: Mounter, store: Path, data: bytes) -> None:
    flip(store / "m.brv", record_at(store / "m.brv", 1) + 12)
    check(mount(), data, range(SIZES[0], SIZES[0] + SIZES[1]))


@pytest.mark.parametrize("offset", [0, 40, -1, -50, -104 - 3 * 21 - 8, -104 - 30])
def test_damaged_head_or_index_fails_the_open_alone(
    mount: Mounter, store: Path, data: bytes, offset: int
) -> None:
    flip(store / "m.brv", offset)
    (store / "other").write_text("other")
    mounted = mount()
    assert (mounted.path / "m").stat().st_size == len(data)
    assert sorted(os.listdir(mounted.path)) == ["m", "other"]
    with pytest.raises(OSError) as caught:
        (mounted.path / "m").open("rb")
    assert caught.value.errno == errno.EIO
    assert (mounted.path / "other").read_text() == "other"


@pytest.mark.parametrize("kept", [0, 47, 48, 1000, 500_000])
def test_a_truncated_archive_opens_not(mount: Mounter, store: Path, data: bytes, kept: int) -> None:
    os.truncate(store / "m.brv", kept)
    mounted = mount()
    if kept < 8:
        assert (mounted.path / "m.brv").read_bytes() == b""
        return
    (mounted.path / "m").stat()
    with pytest.raises(OSError) as caught:
        (mounted.path / "m").open("rb")
    assert caught.value.errno == errno.EIO


def test_an_archive_cut_short_while_it_is_read(mount: Mounter, store: Path, data: bytes) -> None:
    mounted = mount()
    with (mounted.path / "m").open("rb", buffering=0) as file:
        assert file.read(10) == data[:10]
        os.truncate(store / "m.brv", block_at(store / "m.brv", 2, 0))
        with pytest.raises(OSError) as caught:
            os.pread(file.fileno(), 10, len(data) - 10)
        assert caught.value.errno == errno.EIO


def test_an_archive_of_another_version(mount: Mounter, store: Path, data: bytes) -> None:
    path = store / "m.brv"
    head = bytearray(path.read_bytes()[:48])
    head[8] = 9
    head[40:] = checksum(head[:40]).to_bytes(8, "little")
    with path.open("r+b") as file:
        file.write(head)
    mounted = mount()
    assert (mounted.path / "m").stat().st_size == len(data)
    with pytest.raises(OSError) as caught:
        (mounted.path / "m").open("rb")
    assert caught.value.errno == errno.EIO
    assert "version" in mounted.log.read_text()
