"""What programs that load models do, each compared byte by byte; and many of them at once."""

import ctypes
import mmap
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.mount.conftest import Mount, Mounter
from tests.stores import add_archive, noise

MAP_POPULATE = 0x8000


@pytest.fixture
def mounted(mount: Mounter, store: Path, model: tuple[Path, Path]) -> Mount:
    os.link(model[1], store / "m.safetensors.brv")
    return mount()


@pytest.fixture
def file(mounted: Mount) -> Path:
    return mounted.path / "m.safetensors"


@pytest.fixture
def plain(model: tuple[Path, Path]) -> Path:
    return model[0]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_load_file(file: Path, plain: Path, backend: str) -> None:
    try:
        loaded = load_file(file, backend=backend)
    except TypeError:
        pytest.skip("this safetensors has one backend")
    assert same(loaded, load_file(plain))


def test_slices_from_threads(file: Path, plain: Path) -> None:
    """As transformers: every thread takes slices of tensors out of one open file."""
    with safe_open(plain, "np") as reference, safe_open(file, "np") as opened, ThreadPoolExecutor(8) as pool:

        def rows(what: tuple[str, int]) -> bool:
            name, row = what
            return bool(
                np.array_equal(
                    opened.get_slice(name)[row : row + 3], reference.get_slice(name)[row : row + 3]
                )
            )

        wanted = [(name, row) for name in ("embedding", "half") for row in range(0, 290, 3)]
        random.Random(0).shuffle(wanted)
        assert all(pool.map(rows, wanted))


@pytest.mark.parametrize("offset", [0, 8, 4096, 123_456, 1_000_001])
def test_memmap_at_an_offset(file: Path, plain: Path, offset: int) -> None:
    assert np.array_equal(np.memmap(file, np.uint8, "r", offset), np.memmap(plain, np.uint8, "r", offset))


@pytest.mark.parametrize("advice", [mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL, mmap.MADV_WILLNEED])
def test_advice_on_a_mapping(file: Path, plain: Path, advice: int) -> None:
    data = plain.read_bytes()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(advice)
        pages = list(range(0, len(data), 4096))
        random.Random(advice).shuffle(pages)
        assert all(mapped[page : page + 100] == data[page : page + 100] for page in pages[:200])
        assert mapped[:] == data


def test_populated_after_close(file: Path, plain: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    mapped = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | MAP_POPULATE, prot=mmap.PROT_READ)
    os.close(descriptor)
    with mapped:
        assert mapped[:] == plain.read_bytes()


def test_pages_thrown_away_while_reading(file: Path, plain: Path) -> None:
    """As vLLM and SGLang: what was read is given back, by descriptor and by mapping."""
    data = plain.read_bytes()
    step = 300_000
    with file.open("rb", buffering=0) as stream:
        for offset in range(0, len(data), step):
            assert os.pread(stream.fileno(), step, offset) == data[offset : offset + step]
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            for offset in range(0, len(data), step):
                assert mapped[offset : offset + step] == data[offset : offset + step]
                mapped.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_interleaved_streams_on_one_descriptor(file: Path, plain: Path) -> None:
    data = plain.read_bytes()
    half = len(data) // 2
    with file.open("rb", buffering=0) as stream:
        for offset in range(0, half, 50_000):
            for begin in (offset, half + offset):
                assert os.pread(stream.fileno(), 50_000, begin) == data[begin : begin + 50_000]


def test_preadv_into_many_buffers(file: Path, plain: Path) -> None:
    data = plain.read_bytes()
    buffers = [bytearray(size) for size in (1, 4096, 100_000, 7)]
    with file.open("rb", buffering=0) as stream:
        assert os.preadv(stream.fileno(), buffers, 5000) == sum(map(len, buffers))
    assert b"".join(buffers) == data[5000 : 5000 + sum(map(len, buffers))]


def test_what_is_in_the_page_cache_asks_for_nothing(mounted: Mount, file: Path, plain: Path) -> None:
    assert same(load_file(file), load_file(plain))
    before = mounted.stats()["requests"]
    assert before > 0
    assert same(load_file(file), load_file(plain))
    assert file.read_bytes() == plain.read_bytes()
    assert mounted.stats()["requests"] == before


def test_64_mappings_of_16_shards(mount: Mounter, store: Path) -> None:
    """With a cache far too small for them, and every thread at another place of its shard."""
    shards = [add_archive(store / f"{number}.brv", [noise(5_000_003, number)]) for number in range(16)]
    mounted = mount(cache_size=32 << 20)
    start = threading.Barrier(64)

    def read(number: int) -> bool:
        data = shards[number % 16]
        begin = number // 16 * 1_250_000
        with (mounted.path / str(number % 16)).open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
        with mapped:
            start.wait(60)
            return mapped[begin:] == data[begin:] and mapped[:begin] == data[:begin]

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(read, range(64)))


def peak(process: int) -> int:
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def small_tensors() -> list[bytes]:
    data = noise(100_000 * 300)
    return [data[place : place + 300] for place in range(0, len(data), 300)]


@pytest.mark.parametrize(
    "sections",
    [lambda: [noise(60_000_001), noise(70_000_001, 1)], small_tensors],
    ids=["a large model", "100,000 tensors"],
)
def test_memory_stays_within_the_budget(
    mount: Mounter, store: Path, sections: Callable[[], list[bytes]]
) -> None:
    budget = 32 << 20
    data = add_archive(store / "m.brv", sections())
    mounted = mount(cache_size=budget)
    chance = random.Random(0)
    with (mounted.path / "m").open("rb", buffering=0) as stream:
        for _ in range(20):
            offset = chance.randrange(len(data))
            assert os.pread(stream.fileno(), 5000, offset) == data[offset : offset + 5000]
            stats = mounted.stats()
            assert stats["cached_bytes"] + stats["program_bytes"] + stats["index_bytes"] <= budget
        if len(data) > 2 * budget:
            assert stream.read() == data
    assert peak(mounted.daemon) <= budget + 100_000_000


def test_readahead_reaches_the_end_of_the_file_and_not_past_it(
    mounted: Mount, file: Path, plain: Path
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    size = plain.stat().st_size
    with file.open("rb", buffering=0) as stream:
        for offset in (size - 1, size, size + 4096):
            libc.readahead(stream.fileno(), ctypes.c_int64(offset), ctypes.c_size_t(1 << 20))
        assert os.pread(stream.fileno(), 1 << 20, size - 5) == plain.read_bytes()[-5:]
        assert os.fstat(stream.fileno()).st_size == size
