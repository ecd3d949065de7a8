"""brevisfs status and umount --drain, each as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brevisfs.errors import ExitCode
from tests.mount.conftest import has_fuse
from tests.twins import model

pytestmark = pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3")


def brevisfs(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    command = [sys.executable, "-m", "brevisfs", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A store, and its mount whose files settle for long."""
    store, mountpoint = tmp_path / "store", tmp_path / "models"
    store.mkdir()
    mountpoint.mkdir()
    command = ["mount", store, mountpoint, "--settle", 1000, "--profile", "fast", "--log", tmp_path / "log"]
    assert brevisfs(*command)[0] == 0
    yield store, mountpoint
    if os.path.ismount(mountpoint):
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)


def test_drain(folders: tuple[Path, Path]) -> None:
    store, mountpoint = folders
    for number in range(3):
        (mountpoint / f"m{number}").write_bytes(model(number))
    code, said, _ = brevisfs("status", mountpoint)
    assert code == 0
    assert f"{store} is mounted" in said
    assert "3 to be packed" in said
    assert brevisfs("umount", "--drain", mountpoint)[0] == 0
    assert sorted(os.listdir(store)) == [".brevisfs", "m0.brv", "m1.brv", "m2.brv"]


def test_without_drain_it_is_left_for_the_next_time(folders: tuple[Path, Path]) -> None:
    store, mountpoint = folders
    (mountpoint / "m").write_bytes(model(1))
    assert brevisfs("umount", mountpoint)[0] == 0
    assert sorted(os.listdir(store)) == [".brevisfs", "m"]


def test_pause_and_resume(folders: tuple[Path, Path]) -> None:
    _, mountpoint = folders
    assert "paused" in brevisfs("status", mountpoint, "--pause")[1]
    assert json.loads(brevisfs("status", mountpoint, "--json")[1])["recompression"]["paused"]
    assert "paused" not in brevisfs("status", mountpoint, "--resume")[1]


def test_no_mount(tmp_path: Path) -> None:
    for command in (["status"], ["status", "--pause"], ["umount", "--drain"]):
        code, _, said = brevisfs(*command, tmp_path)
        assert code == ExitCode.MOUNTPOINT
        assert said.startswith("brevisfs: ")


def test_read_only(folders: tuple[Path, Path]) -> None:
    store, mountpoint = folders
    assert brevisfs("umount", mountpoint)[0] == 0
    assert brevisfs("mount", store, mountpoint, "--read-only")[0] == 0
    assert "read-only" in brevisfs("status", mountpoint)[1]
    assert brevisfs("umount", mountpoint, "--drain")[0] == 0
