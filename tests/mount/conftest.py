"""Stores, and mounts of them that are always ended."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from brevisfs.errors import BrevisError
from brevisfs.fs import MountOptions, mount_background, umount
from brevisfs.synth import Profile, pack


@dataclass(frozen=True)
class Mount:
    """A store and where it is mounted, with the daemon's process and log."""

    store: Path
    path: Path
    daemon: int
    log: Path

    def stats(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(os.getxattr(self.path, "user.brevisfs.stats"))
        return found

    def packing(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(os.getxattr(self.path, "user.brevisfs.recompression"))
        return found

    def command(self, what: str) -> None:
        """See Recompression.command."""
        os.setxattr(self.path, "user.brevisfs.recompression", what.encode())

    def drain(self) -> None:
        """Returns once nothing is left to be packed but what failed to."""
        deadline = time.monotonic() + 120
        self.command("drain")
        while self.packing()["left"]:
            assert time.monotonic() < deadline, "packing does not come to an end"
            time.sleep(0.02)
        self.command("undrain")

    def settle(self) -> None:
        """Returns once no file is open: RELEASE comes after the kernel's own last read, not at close."""
        deadline = time.monotonic() + 10
        while self.stats()["open_files"]:
            assert time.monotonic() < deadline, "a file that was closed stays open"


Mounter = Callable[..., Mount]


def has_fuse() -> bool:
    return os.access("/dev/fuse", os.R_OK | os.W_OK) and shutil.which("fusermount3") is not None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def mount(store: Path, tmp_path: Path) -> Iterator[Mounter]:
    """Mounts the test's store; at the test's end the mount must be as good as new, and is ended."""
    if not has_fuse():
        pytest.skip("mounting needs /dev/fuse and fusermount3")
    path, log = tmp_path / "mnt", tmp_path / "log"
    path.mkdir()
    made: list[Mount] = []

    def mount(cache_size: int = 64 << 20, **chosen: Any) -> Mount:
        options = MountOptions(cache_size=cache_size, threads=2, log=log, **chosen)
        made.append(Mount(store, path, mount_background(store, path, options), log))
        return made[-1]

    yield mount
    try:
        mounted = bool(made) and os.path.ismount(path)
        if mounted:
            assert made[-1].stats()["stray_exceptions"] == 0
            made[-1].settle()
            umount(path)
        assert "Traceback" not in (log.read_text() if log.exists() else "")
    finally:
        _end(path)


def _end(path: Path) -> None:
    if os.path.ismount(path):
        try:
            umount(path)
        except BrevisError:
            umount(path, lazy=True)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A safetensors file of several extents, and its archive."""
    folder = tmp_path_factory.mktemp("model")
    chance = np.random.default_rng(0)
    tensors: dict[str, npt.NDArray[Any]] = {
        "embedding": chance.normal(0, 0.02, (512, 1000)).astype(np.float32),
        "half": chance.normal(0, 0.02, (300, 700)).astype(np.float16),
        "codes": chance.integers(0, 16, 100_003).astype(np.int8),
        "position_ids": np.arange(4096, dtype=np.int64),
        "zeros": np.zeros((1000, 100), np.float32),
        "scale": np.array(0.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
    }
    plain, archive = folder / "m.safetensors", folder / "m.safetensors.brv"
    save_file(tensors, plain)
    with plain.open("rb") as source, archive.open("w+b") as out:
        pack(source.fileno(), out.fileno(), profile=Profile.FAST, jobs=1)
    return plain, archive
