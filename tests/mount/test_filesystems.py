"""Stores on filesystems that are put together of others."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brevisfs.fs import RecompressionOptions
from brevisfs.store import Store
from tests.mount.conftest import Mounter
from tests.stores import add_archive, noise
from tests.twins import model

MountOther = Callable[..., None]


@pytest.fixture
def mount_other() -> Iterator[MountOther]:
    """Mounts any filesystem, for the time of the test."""
    if os.geteuid() != 0:
        pytest.skip("mounts a filesystem")
    with ExitStack() as mounts:

        def mount_other(place: Path, *arguments: str | Path) -> None:
            done = subprocess.run(["mount", *arguments, place], check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"cannot mount a filesystem: {done.stderr.strip()}")
            mounts.callback(lambda: subprocess.run(["umount", "-l", place], check=True))

        yield mount_other


@pytest.fixture
def layers(store: Path, tmp_path: Path, mount_other: MountOther) -> Path:
    """The lower of two layers that are on two devices, and of which the store is made once it is mounted."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    lower.mkdir()
    upper.mkdir()
    mount_other(upper, "-t", "tmpfs", "tmpfs")
    for name in ("changes", "work"):
        (upper / name).mkdir()
    return lower


def test_layers_on_two_devices(
    layers: Path, store: Path, tmp_path: Path, mount_other: MountOther, mount: Mounter
) -> None:
    (layers / "d").mkdir()
    (layers / "d/m").write_bytes(model(1))
    (layers / "text").write_text("text")
    data = add_archive(layers / "archive.brv", [noise(100_000)])
    upper = tmp_path / "upper"
    mount_other(
        store,
        *("-t", "overlay", "overlay", "-o"),
        f"lowerdir={layers},upperdir={upper}/changes,workdir={upper}/work",
    )
    assert (store / "text").stat().st_dev != store.stat().st_dev
    mounted = mount(recompression=RecompressionOptions(settle=0, profile="fast", max_load=1000))
    path = mounted.path
    assert sorted(os.listdir(path)) == ["archive", "d", "text"]
    with (path / "text").open("r+b") as file:
        number = os.fstat(file.fileno()).st_ino
        file.write(b"TEX")
        file.flush()
        os.fchmod(file.fileno(), 0o604)
        assert (path / "text").read_text() == "TEXt"
        assert (path / "text").stat().st_ino == number
    mounted.drain()
    assert os.getxattr(path / "d/m", "user.brevisfs.state") == b"archive"
    assert (path / "d/m").read_bytes() == model(1)
    number = (path / "archive").stat().st_ino
    os.chmod(path / "archive", 0o604)
    os.rename(path / "archive", path / "renamed")
    assert (path / "renamed").read_bytes() == data
    assert (path / "renamed").stat().st_ino == number
    with (path / "renamed").open("r+b") as file:
        file.write(b"new")
    assert (path / "renamed").read_bytes() == b"new" + data[3:]
    os.unlink(path / "text")
    assert sorted(os.listdir(path)) == ["d", "renamed"]


def test_what_is_mounted_in_a_store_is_not_shown(store: Path, mount_other: MountOther) -> None:
    (store / "folder").mkdir()
    (store / "file").write_text("the store's")
    mount_other(store / "folder", "-t", "tmpfs", "tmpfs")
    (store / "folder/file").write_text("another's")
    mount_other(store / "file", "--bind", store / "folder/file")
    (store / "shown").touch()
    with Store(store) as served, served.folder([]) as folder:
        assert [entry.name for entry in served.entries(folder)] == [b"shown"]
