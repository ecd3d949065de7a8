"""Saving, renaming and deleting for long leaves nothing behind.

BREVISFS_CHURN is how many rounds.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest

from brevisfs.fs import RecompressionOptions
from tests.mount.conftest import Mount, Mounter
from tests.twins import model

RECEIVERS = 3
ROUNDS = int(os.environ.get("BREVISFS_CHURN", "40"))

pytestmark = pytest.mark.timeout(max(300, 3 * ROUNDS))


def held(mounted: Mount) -> dict[str, int]:
    """What the daemon has open and in memory once the kernel has forgotten what it can."""
    subprocess.run(["sysctl", "-q", "vm.drop_caches=3"], check=True)
    mounted.settle()
    return {
        "descriptors": len(os.listdir(f"/proc/{mounted.daemon}/fd")),
        "inodes": mounted.stats()["inodes"],
        "tasks": len(os.listdir(f"/proc/{mounted.daemon}/task")),
    }


def memory(mounted: Mount) -> int:
    """Bytes that the daemon has in memory, beside its cache of what it has decoded."""
    fields = Path(f"/proc/{mounted.daemon}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") - mounted.stats()["cached_bytes"]


def turn(mounted: Mount, number: int) -> None:
    """One file, from its making to its end, sometimes packed, read, and written to when it is packed."""
    path, renamed = mounted.path / f"m{number % 7}", mounted.path / f"folder{number % 3}" / "n"
    renamed.parent.mkdir(exist_ok=True)
    path.write_bytes(model(number))
    path.rename(renamed)
    if number % 10 == 0:
        mounted.drain()
        assert renamed.read_bytes() == model(number)
    if number % 20 == 0:
        with renamed.open("ab") as file:
            file.write(b"more")
    os.link(renamed, path)
    renamed.unlink()
    path.unlink()
    renamed.parent.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the kernel's caches")
def test_nothing_is_left(mount: Mounter, store: Path) -> None:
    mounted = mount(recompression=RecompressionOptions(settle=0, profile="fast", max_load=1000))
    for number in range(20):
        turn(mounted, number)
    mounted.drain()
    before, size = held(mounted), memory(mounted)
    for number in range(ROUNDS):
        turn(mounted, number)
    mounted.drain()
    deadline = time.monotonic() + 30
    # libfuse makes a pipe for each thread that receives a request for the first time.
    before["descriptors"] += 2 * RECEIVERS
    while any(now > then for now, then in zip(held(mounted).values(), before.values(), strict=True)):
        assert time.monotonic() < deadline, (held(mounted), before)
    assert memory(mounted) < size + (16 << 20) + 1000 * ROUNDS
    assert os.listdir(store) == [".brevisfs"]
    assert os.listdir(store / ".brevisfs/tmp") == os.listdir(store / ".brevisfs/lost+found") == []
