"""What the kernel's tables tell about mounts and their users, and which mountpoints are refused."""

import os
from pathlib import Path

import pytest

from brevisfs.errors import ExitCode
from brevisfs.fs import BadOption, MountOptions, MountpointUnusable, NoFuse, umount
from brevisfs.fs import _checks as checks
from brevisfs.fs._mounts import filesystem_at, holders


def test_what_is_mounted_where(tmp_path: Path) -> None:
    assert filesystem_at(Path("/proc")) == "proc"
    assert filesystem_at(tmp_path) is None


def test_holders_are_named(tmp_path: Path) -> None:
    assert holders(tmp_path) == []
    (tmp_path / "x").write_text("")
    with (tmp_path / "x").open():
        (me,) = holders(tmp_path)
    assert f"({os.getpid()})" in me
    assert holders(Path(str(tmp_path)[:-1])) == []


def test_a_good_mountpoint(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "mnt").mkdir()
    (tmp_path / "link").symlink_to("mnt")
    assert checks.check_mountpoint(tmp_path / "link", tmp_path / "store") == tmp_path / "mnt"


@pytest.mark.parametrize(
    ("mountpoint", "store", "reason"),
    [
        ("nothing", "store", "no such folder"),
        ("file", "store", "Not a directory"),
        ("full", "store", "not empty"),
        ("store", "store", "lie in each other"),
        ("store/inner", "store", "lie in each other"),
        ("outer", "outer/store", "lie in each other"),
    ],
)
def test_a_bad_mountpoint(tmp_path: Path, mountpoint: str, store: str, reason: str) -> None:
    for folder in ("full/x", "store/inner", "outer/store"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(MountpointUnusable, match=reason) as caught:
        checks.check_mountpoint(tmp_path / mountpoint, tmp_path / store)
    assert str(tmp_path / mountpoint) in str(caught.value)
    assert caught.value.exit_code == ExitCode.MOUNTPOINT


def test_a_machine_without_fuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FUSE_DEVICE", tmp_path / "fuse")
    with pytest.raises(NoFuse, match="fuse module") as caught:
        checks.check_fuse()
    assert caught.value.exit_code == ExitCode.NO_FUSE
    (tmp_path / "fuse").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoFuse, match="fusermount3 is not installed"):
        checks.check_fuse()


@pytest.mark.parametrize(
    ("text", "allowed"), [("#user_allow_other\n", False), ("x\nuser_allow_other \n", True)]
)
def test_who_may_let_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, allowed: bool
) -> None:
    configuration = tmp_path / "fuse.conf"
    monkeypatch.setattr(checks, "FUSE_CONFIGURATION", configuration)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not checks.may_allow_others()
    configuration.write_text(text)
    assert checks.may_allow_others() == allowed
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert checks.may_allow_others()


def test_umount_of_what_is_no_mount_of_ours(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "nothing is mounted"), (Path("/proc"), "proc")):
        with pytest.raises(MountpointUnusable, match=what):
            umount(path)


def test_options_out_of_range() -> None:
    for cache_size, threads in ((1 << 20, 2), (64 << 20, 0)):
        with pytest.raises(BadOption) as caught:
            MountOptions(cache_size=cache_size, threads=threads)
        assert caught.value.exit_code == ExitCode.USAGE
