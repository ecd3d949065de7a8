"""Mounting and unmounting: what is refused, who is told, and that nothing is left."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from brevisfs.errors import ExitCode
from brevisfs.fs import (
    MountBusy,
    MountFailed,
    MountOptions,
    MountpointUnusable,
    mount_background,
    umount,
)
from brevisfs.store import StoreBusy, StoreNotFound
from tests.mount.conftest import Mount, Mounter, has_fuse
from tests.stores import add_archive, noise

FOREGROUND = """
import sys
from pathlib import Path
from brevisfs.fs import mount_foreground
mount_foreground(Path(sys.argv[1]), Path(sys.argv[2]))
"""
BACKGROUND = FOREGROUND.replace("foreground", "background")


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A descriptor that is closed even if the mount has died, which the kernel then reports."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def ended(daemon: int) -> bool:
    """Waits for the daemon, this process's child, to end; whether it did so by itself with success."""
    _, status = os.waitpid(daemon, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.fixture
def mounted(mount: Mounter, store: Path) -> Mount:
    add_archive(store / "m.brv", [noise(3_000_000)])
    return mount()


def test_it_answers_when_mount_returns_and_is_gone_when_umount_returns(mounted: Mount) -> None:
    assert os.listdir(mounted.path) == ["m"]
    assert os.path.ismount(mounted.path)
    umount(mounted.path)
    assert not os.path.ismount(mounted.path)
    assert ended(mounted.daemon)
    # The lock is free at once.
    os.rmdir(mounted.path)
    mounted.path.mkdir()
    mount_background(mounted.store, mounted.path, MountOptions(log=mounted.log))


def test_the_daemon_is_a_fresh_process_and_has_no_children(mounted: Mount) -> None:
    process = Path(f"/proc/{mounted.daemon}")
    command = (process / "cmdline").read_bytes().split(b"\0")
    assert command[:4] == [os.fsencode(sys.executable), b"-P", b"-m", b"brevisfs.fs.daemon"]
    (mounted.path / "m").read_bytes()
    children = [(task / "children").read_text() for task in (process / "task").iterdir()]
    assert not any(children)
    assert os.readlink(process / "cwd") == "/"
    assert os.getsid(mounted.daemon) == mounted.daemon
    assert {os.readlink(process / "fd" / str(number)) for number in (0, 1, 2)} == {os.devnull}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the read-ahead")
def test_requests_are_large(mounted: Mount) -> None:
    device = mounted.path.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    assert setting.read_text() == "512\n"


def test_a_store_has_one_daemon(mounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreBusy, match=str(mounted.daemon)) as caught:
        mount_background(mounted.store, tmp_path / "other")
    assert caught.value.exit_code == ExitCode.BUSY


def test_a_mountpoint_that_is_taken(mounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    with pytest.raises(MountpointUnusable, match="mounted there already"):
        mount_background(tmp_path / "another", mounted.path)


@pytest.mark.skipif(not has_fuse(), reason="needs /dev/fuse and fusermount3")
def test_what_cannot_be_mounted(store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreNotFound, match="no such store"):
        mount_background(tmp_path / "nowhere", tmp_path)
    with pytest.raises(MountpointUnusable, match="no such folder"):
        mount_background(store, tmp_path / "nowhere")
    with pytest.raises(MountpointUnusable, match="lie in each other"):
        mount_background(store, tmp_path)
    (store / ".brevisfs").write_text("")
    (tmp_path / "mnt").mkdir()
    with pytest.raises(MountFailed, match=f"{store} .* Not a directory"):
        mount_background(store, tmp_path / "mnt")
    assert "Traceback" not in capfd.readouterr().err


def test_a_busy_mount_names_who_uses_it(mounted: Mount) -> None:
    with (mounted.path / "m").open("rb") as file:
        with pytest.raises(MountBusy) as caught:
            umount(mounted.path)
        assert f"({os.getpid()})" in str(caught.value)
        assert caught.value.exit_code == ExitCode.BUSY
        assert file.read(10) == noise(3_000_000)[:10]
    with subprocess.Popen(["sleep", "100"], cwd=mounted.path) as sleeper:
        with pytest.raises(MountBusy, match=rf"sleep \({sleeper.pid}\)"):
            umount(mounted.path)
        sleeper.kill()


def test_lazy(mounted: Mount) -> None:
    with (mounted.path / "m").open("rb") as file:
        umount(mounted.path, lazy=True)
        assert os.listdir(mounted.path) == []
        assert file.read() == noise(3_000_000)
        os.kill(mounted.daemon, 0)
    assert ended(mounted.daemon)


def test_lazy_asks_nothing_of_the_mount(mounted: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stuck, and the kernel answers for it a second at most."""
    real = os.lstat

    def lstat(path: Any, **options: Any) -> os.stat_result:
        assert os.fspath(path) != str(mounted.path)
        return real(path, **options)

    os.kill(mounted.daemon, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "lstat", lstat)
            umount(mounted.path, lazy=True)
    finally:
        os.kill(mounted.daemon, signal.SIGCONT)
    assert os.listdir(mounted.path) == []
    assert ended(mounted.daemon)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(mounted: Mount, number: signal.Signals) -> None:
    (mounted.path / "m").read_bytes()
    os.kill(mounted.daemon, number)
    assert ended(mounted.daemon)
    assert not os.path.ismount(mounted.path)
    assert os.listdir(mounted.path) == []


def test_a_signal_ends_even_a_busy_one(mounted: Mount) -> None:
    with held(mounted.path / "m") as file:
        os.pread(file, 10, 0)
        os.kill(mounted.daemon, signal.SIGTERM)
        assert ended(mounted.daemon)
        assert os.listdir(mounted.path) == []
        with pytest.raises(OSError):
            os.pread(file, 10, 2_000_000)


def test_after_a_crash_it_can_be_mounted_again(mounted: Mount) -> None:
    os.kill(mounted.daemon, signal.SIGKILL)
    os.waitpid(mounted.daemon, 0)
    with pytest.raises(OSError) as caught:
        os.listdir(mounted.path)
    assert caught.value.errno == errno.ENOTCONN
    mount_background(mounted.store, mounted.path, MountOptions(log=mounted.log))
    assert os.listdir(mounted.path) == ["m"]


def test_after_a_crash_it_can_be_unmounted(mounted: Mount) -> None:
    os.kill(mounted.daemon, signal.SIGKILL)
    os.waitpid(mounted.daemon, 0)
    umount(mounted.path)
    assert os.listdir(mounted.path) == []


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(100)
        yield notices


@pytest.mark.skipif(not has_fuse(), reason="needs /dev/fuse and fusermount3")
def test_the_service(store: Path, tmp_path: Path, notices: socket.socket) -> None:
    """In the foreground, with a notice once the mount answers, as the systemd unit runs it."""
    add_archive(store / "m.brv", [noise(1000)])
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    environment = {**os.environ, "NOTIFY_SOCKET": notices.getsockname()}
    command = [sys.executable, "-c", FOREGROUND, str(store), str(mountpoint)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert notices.recv(100) == b"READY=1"
            assert (mountpoint / "m").read_bytes() == noise(1000)
            umount(mountpoint)
            assert notices.recv(100) == b"STOPPING=1"
            _, errors = service.communicate(timeout=100)
        finally:
            service.kill()
    assert service.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.skipif(not has_fuse(), reason="needs /dev/fuse and fusermount3")
def test_nothing_of_the_starter_stays_open(store: Path, tmp_path: Path) -> None:
    """Who reads the output of `mount` to its end does not wait for the daemon."""
    (tmp_path / "mnt").mkdir()
    command = [sys.executable, "-c", BACKGROUND, str(store), str(tmp_path / "mnt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    try:
        assert "Traceback" not in done.stderr
        assert all(line.startswith("brevisfs: ") for line in done.stderr.splitlines())
    finally:
        umount(tmp_path / "mnt")


@pytest.mark.skipif(os.geteuid() != 0 or not has_fuse(), reason="mounts a read-only filesystem")
def test_a_store_that_cannot_be_written(tmp_path: Path, store: Path) -> None:
    """Mounts, creates nothing."""
    data = add_archive(store / "m.brv", [noise(1000)])
    sealed, mountpoint = tmp_path / "sealed", tmp_path / "mnt"
    sealed.mkdir()
    mountpoint.mkdir()
    subprocess.run(["mount", "--bind", store, sealed], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", sealed], check=True)
        mount_background(sealed, mountpoint)
        try:
            assert (mountpoint / "m").read_bytes() == data
        finally:
            umount(mountpoint)
    finally:
        subprocess.run(["umount", sealed], check=True)
    assert os.listdir(store) == ["m.brv"]


def test_nobody_waits_for_ever(mounted: Mount) -> None:
    """A reader fails when the daemon is killed under it."""
    with held(mounted.path / "m") as file:
        os.kill(mounted.daemon, signal.SIGKILL)
        os.waitpid(mounted.daemon, 0)
        with pytest.raises(OSError):
            os.pread(file, 10, 2_500_000)
    umount(mounted.path)
