"""The commands a person types around a mount, each as a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from brevisfs.errors import ExitCode
from tests.mount.conftest import has_fuse

pytestmark = pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3")


def brevisfs(*arguments: object) -> tuple[int, str]:
    """Exit code and stderr of one command."""
    command = [sys.executable, "-m", "brevisfs", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def complaint(said: str) -> str:
    """The last line of stderr, which says what went wrong."""
    line = said.splitlines()[-1]
    assert line.startswith("brevisfs: ")
    return line


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A store with one archive, and a mountpoint that is left unmounted."""
    store, mountpoint = tmp_path / "store", tmp_path / "models"
    store.mkdir()
    mountpoint.mkdir()
    model = tmp_path / "m.safetensors"
    weights = np.random.default_rng(0).normal(0, 0.02, (64, 64)).astype(np.float32)
    save_file({"weight": weights}, model)
    assert brevisfs("pack", model, "-o", f"{store}/")[0] == 0
    yield store, mountpoint
    if os.path.ismount(mountpoint):
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)


def test_mount_use_umount(folders: tuple[Path, Path], tmp_path: Path) -> None:
    store, mountpoint = folders
    assert brevisfs("mount", store, mountpoint, "--log", tmp_path / "log") == (0, "")
    assert (mountpoint / "m.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    assert brevisfs("umount", mountpoint) == (0, "")
    assert os.listdir(mountpoint) == []
    assert brevisfs("mount", store, mountpoint, "--log", tmp_path / "log") == (0, "")
    assert brevisfs("umount", mountpoint, "--lazy") == (0, "")


def test_a_mountpoint_with_something_in_it(folders: tuple[Path, Path]) -> None:
    store, mountpoint = folders
    (mountpoint / "file").touch()
    code, said = brevisfs("mount", store, mountpoint)
    assert code == ExitCode.MOUNTPOINT
    assert "not empty" in complaint(said)


def test_a_mountpoint_in_use(folders: tuple[Path, Path], tmp_path: Path) -> None:
    store, mountpoint = folders
    assert brevisfs("mount", store, mountpoint, "--log", tmp_path / "log")[0] == 0
    other = tmp_path / "other"
    other.mkdir()
    code, said = brevisfs("mount", other, mountpoint)
    assert code == ExitCode.MOUNTPOINT
    assert "mounted there already" in complaint(said)
    with (mountpoint / "m.safetensors").open():
        code, said = brevisfs("umount", mountpoint)
        assert code == ExitCode.BUSY
        assert f"({os.getpid()})" in complaint(said)
    assert brevisfs("umount", mountpoint) == (0, "")


def test_pack_inside_a_mount(folders: tuple[Path, Path], tmp_path: Path) -> None:
    store, mountpoint = folders
    assert brevisfs("mount", store, mountpoint, "--log", tmp_path / "log")[0] == 0
    for arguments in ([mountpoint / "m.safetensors"], [tmp_path / "m.safetensors", "-o", f"{mountpoint}/a/"]):
        code, said = brevisfs("pack", *arguments)
        assert code == ExitCode.FAILED
        assert "inside a BrevisFS mount" in complaint(said)
    assert brevisfs("pack", mountpoint / "m.safetensors", "-o", tmp_path / "again.brv")[0] == 0
    assert (tmp_path / "again.brv").read_bytes() == (store / "m.safetensors.brv").read_bytes()
