"""What clients do to model files, as actions that a benchmark can time. Each returns the bytes it read."""

import mmap
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

CHUNK = 1 << 20
PAGE = mmap.PAGESIZE

Load = Callable[[Sequence[Path]], int]
"""Takes the files to read: one model, or its shards."""


def sequential(files: Sequence[Path]) -> int:
    """Reads of 1 MiB from the beginning to the end, into one buffer."""
    buffer = bytearray(CHUNK)
    done = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                done += count
    return done


def touch(files: Sequence[Path]) -> int:
    """One byte of every page of a mapping, in order."""
    for file in files:
        mapped = np.memmap(file, np.uint8, "r")
        int(mapped[::PAGE].sum(dtype=np.int64))
        del mapped
    return _size(files)


def load(files: Sequence[Path]) -> int:
    """`safetensors.numpy.load_file`, and one pass over what it gives."""
    for file in files:
        for tensor in load_file(file).values():
            int(tensor.reshape(-1).view(np.uint8)[:: PAGE // 2].sum(dtype=np.int64))
    return _size(files)


def load_torch(files: Sequence[Path]) -> int:
    """`safetensors.torch.load_file`, and one pass over what it gives."""
    from safetensors.torch import load_file

    for file in files:
        for tensor in load_file(file).values():
            tensor.reshape(-1).sum()
    return _size(files)


def threads(files: Sequence[Path]) -> int:
    """Every file by a thread of its own, at the same time."""
    with ThreadPoolExecutor(len(files)) as pool:
        return sum(pool.map(sequential, [[file] for file in files]))


def at_random(size: int, count: int) -> Load:
    """`count` preads of `size` bytes at places that are drawn once for all systems and rounds."""

    def load(files: Sequence[Path]) -> int:
        chance = random.Random(size)
        buffer = bytearray(size)
        done = 0
        for file in files:
            last = (file.stat().st_size - size) // PAGE
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                for _ in range(count):
                    done += os.preadv(descriptor, [buffer], chance.randint(0, last) * PAGE)
            finally:
                os.close(descriptor)
        return done

    return load


def everything(torch: bool) -> dict[str, Load]:
    """All loads by name, `torch` too if it is installed; `threads` is the one that is for shards."""
    loads: dict[str, Load] = {
        "sequential": sequential,
        "mmap touch": touch,
        "load_file": load,
        "8 shards": threads,
        "random 4 KiB": at_random(4096, 400),
        "random 1 MiB": at_random(CHUNK, 40),
    }
    if torch and find_spec("torch"):
        loads["torch load"] = load_torch
    return loads


def long_list(folder: Path) -> int:
    """`ls -lR`; how many lines it says."""
    return _lines("ls", "-lR", folder)


def find(folder: Path) -> int:
    """`find -size`; how many lines it says."""
    return _lines("find", folder, "-size", "+0")


def _lines(*command: str | Path) -> int:
    return subprocess.run(command, check=True, capture_output=True).stdout.count(b"\n")


def _size(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)
