"""Several processes in one tree at once: nothing fails that would not fail in a plain folder."""

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brevisfs.fs import RecompressionOptions
from tests.mount.conftest import Mounter
from tests.twins import model

SECONDS = float(os.environ.get("BREVISFS_STRESS", "4"))
EXPECTED = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENOTDIR, errno.EISDIR, errno.EINVAL),
)

pytestmark = pytest.mark.timeout(max(300, int(4 * SECONDS)))


class Process:
    """Does random things to files that others use too; each file holds one whole model, or none."""

    def __init__(self, top: Path, seed: int) -> None:
        self.top = top
        self.chance = random.Random(seed)
        self.seed = seed
        self.models = [model(number) for number in range(8)]

    def path(self) -> Path:
        folder = self.chance.choice(["", "a/", "b/", "a/c/"])
        return self.top / f"{folder}{self.chance.choice('xyz')}"

    def folder(self) -> Path:
        return self.top / self.chance.choice(["a", "b", "a/c", "d"])

    def save(self) -> None:
        mine = self.top / f"mine{self.seed}"
        mine.write_bytes(self.chance.choice(self.models))
        os.rename(mine, self.path())

    def read(self) -> None:
        data = self.path().read_bytes()
        assert data in self.models, f"{len(data)} bytes that nobody wrote"

    def rewrite(self) -> None:
        """Takes a file to itself, changes it there and back, and gives it back."""
        mine = self.top / f"mine{self.seed}"
        os.rename(self.path(), mine)
        data = mine.read_bytes()
        with mine.open("r+b") as file:
            file.write(data[:500])
            file.seek(len(data))
            file.write(b"more")
            file.truncate(len(data))
        os.rename(mine, self.path())

    def link(self) -> None:
        """Not to where others read: it may be of a file that somebody is rewriting."""
        mine = self.top / f"link{self.seed}"
        os.link(self.path(), mine)
        os.unlink(mine)

    def look(self) -> None:
        for path in self.top.rglob("*"):
            path.lstat()

    def step(self) -> None:
        steps: list[Callable[[], object]] = [
            *(self.save, self.save, self.read, self.read, self.read, self.rewrite, self.link, self.look),
            lambda: os.mkdir(self.folder()),
            lambda: os.rename(self.folder(), self.folder()),
            lambda: os.rename(self.path(), self.path()),
            lambda: os.unlink(self.path()),
            lambda: os.chmod(self.path(), self.chance.choice([0o600, 0o644])),
            lambda: os.rmdir(self.folder()),
        ]
        try:
            self.chance.choice(steps)()
        except OSError as error:
            if error.errno not in EXPECTED:
                raise


def main(top: str, seed: str, seconds: str) -> None:
    process = Process(Path(top), int(seed))
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        process.step()


def test_many_at_once(mount: Mounter, store: Path) -> None:
    mounted = mount(recompression=RecompressionOptions(settle=0, profile="fast", max_load=1000))
    command = [sys.executable, "-m", "tests.mount.test_stress", str(mounted.path)]
    processes = [
        subprocess.Popen([*command, str(seed), str(SECONDS)], stderr=subprocess.PIPE, text=True)
        for seed in range(4)
    ]
    said = [process.communicate()[1] for process in processes]
    assert said == [""] * 4, "\n".join(said)
    mounted.drain()
    models = [model(number) for number in range(8)]
    for path in mounted.path.rglob("*"):
        assert path.is_dir() or path.read_bytes() in models
    assert mounted.packing()["packed"] > 0
    assert mounted.packing()["failed"] == []
    assert os.listdir(store / ".brevisfs/tmp") == os.listdir(store / ".brevisfs/lost+found") == []


if __name__ == "__main__":
    main(*sys.argv[1:])
