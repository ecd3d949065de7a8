"""Tools that copy, move, archive, download and check out."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import needs, run
from tests.clients.server import serving
from tests.mount.conftest import Mount

Check = Callable[[dict[str, bytes]], None]


@pytest.fixture
def plain(tmp_path: Path, data: bytes) -> Path:
    """A folder of a model and other files, with metadata."""
    folder = tmp_path / "plain"
    (folder / "sub").mkdir(parents=True)
    (folder / "m.safetensors").write_bytes(data)
    (folder / "sub/config.json").write_text("{}")
    os.link(folder / "sub/config.json", folder / "sub/linked.json")
    os.symlink("m.safetensors", folder / "link")
    os.chmod(folder / "m.safetensors", 0o640)
    os.setxattr(folder / "m.safetensors", "user.note", b"hello")
    os.utime(folder / "m.safetensors", ns=(10**18, 10**18 + 123))
    return folder


def test_cp_and_mv(mounted: Mount, plain: Path, check: Check, data: bytes) -> None:
    run("cp", "-a", plain, mounted.path / "copy")
    shutil.copytree(plain, plain.with_name("moved"), symlinks=True)
    run("mv", plain.with_name("moved"), mounted.path)
    check({"copy/m.safetensors": data, "moved/m.safetensors": data, "moved/sub/config.json": b"{}"})
    assert not plain.with_name("moved").exists()
    run("mv", mounted.path / "moved/m.safetensors", mounted.path / "renamed")
    run("cp", mounted.path / "renamed", mounted.path / "copy/m.safetensors")
    run("cp", "--reflink=auto", "--sparse=always", mounted.path / "renamed", mounted.path / "third")
    check(dict.fromkeys(("renamed", "copy/m.safetensors", "third"), data))
    run("mv", mounted.path / "renamed", plain / "back")
    assert (plain / "back").read_bytes() == data


@needs("rsync")
def test_rsync(mounted: Mount, plain: Path, check: Check, data: bytes) -> None:
    target = mounted.path / "synced"

    def sync(*options: str) -> str:
        return run("rsync", "-aHAX", "--itemize-changes", *options, f"{plain}/", target)

    sync()
    check({"synced/m.safetensors": data})
    assert sync("--checksum") == ""
    assert (target / "sub/config.json").stat().st_nlink == 2
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    (plain / "m.safetensors").write_bytes(changed)
    assert "m.safetensors" in sync("--inplace", "--no-whole-file")
    check({"synced/m.safetensors": bytes(changed)})
    assert sync("--checksum") == ""
    back = plain.with_name("back")
    run("rsync", "-aHAX", f"{target}/", back)
    assert (back / "m.safetensors").read_bytes() == changed
    assert os.listxattr(back / "m.safetensors") == ["user.note"]


def test_tar(mounted: Mount, plain: Path, check: Check, data: bytes) -> None:
    packed = plain.with_name("plain.tar")
    run("tar", "--xattrs", "-cf", packed, "-C", plain, ".")
    run("tar", "--xattrs", "-xf", packed, "-C", mounted.path)
    check({"m.safetensors": data, "sub/linked.json": b"{}"})
    again = plain.with_name("again")
    again.mkdir()
    run("tar", "--xattrs", "-cSf", packed, "-C", mounted.path, ".")
    run("tar", "--xattrs", "-xf", packed, "-C", again)
    assert (again / "m.safetensors").read_bytes() == data
    assert (again / "m.safetensors").stat().st_mtime_ns == 10**18 + 123
    assert os.getxattr(again / "m.safetensors", "user.note") == b"hello"


@needs("git")
def test_git(mounted: Mount, tmp_path: Path, check: Check, data: bytes) -> None:
    source, clone = tmp_path / "source", mounted.path / "clone"
    git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-c", "safe.directory=*")
    source.mkdir()
    run(*git, "init", "-q", cwd=source)
    for content in (data, data[::-1], data):
        (source / "m.safetensors").write_bytes(content)
        run(*git, "add", ".", cwd=source)
        run(*git, "commit", "-q", "-m", "m", "--allow-empty", cwd=source)
    run(*git, "clone", "-q", source, clone)
    check({"clone/m.safetensors": data})
    # Without looking at the content: size, times, inode and ctime have to be those of the check-out.
    assert run(*git, "diff-files", "--name-only", cwd=clone) == ""
    run(*git, "checkout", "-q", "HEAD~1", cwd=clone)
    check({"clone/m.safetensors": data[::-1]} if b'"dtype"' in data[::-1] else {})
    assert (clone / "m.safetensors").read_bytes() == data[::-1]
    run(*git, "checkout", "-q", "-", cwd=clone)
    check({"clone/m.safetensors": data})
    assert run(*git, "status", "--porcelain", cwd=clone) == ""


@needs("curl")
def test_curl_goes_on_with_a_packed_file(mounted: Mount, check: Check, data: bytes) -> None:
    """What is there already may be an archive: a whole model that the rest of the file follows."""
    longer = data + b"and more"
    target = mounted.path / "m"
    with serving({"m": longer}) as server:
        target.write_bytes(data)
        check({"m": data})
        run("curl", "-sS", "-f", "-C", "-", "-o", target, f"{server.url}/plain/m")
        assert target.read_bytes() == longer
        assert server.served == len(b"and more")
        run("curl", "-sS", "-f", "-o", mounted.path / "n", f"{server.url}/plain/m")
    assert (mounted.path / "n").read_bytes() == longer


@needs("aria2c")
@pytest.mark.parametrize("allocation", ["none", "prealloc", "falloc"])
def test_aria2(mounted: Mount, check: Check, data: bytes, allocation: str) -> None:
    options = [f"--file-allocation={allocation}", "-x4", "-s4", "--min-split-size=1M", "--no-conf", "-q"]
    with serving({"m": data}) as server:
        run("aria2c", *options, "-d", mounted.path, "-o", "m", f"{server.url}/plain/m")
    check({"m": data})


@needs("rclone")
def test_rclone(mounted: Mount, plain: Path, check: Check, data: bytes) -> None:
    streams = ["--multi-thread-streams=4", "--multi-thread-cutoff=1M", "--config=/dev/null"]
    run("rclone", "copy", "-l", *streams, plain, mounted.path / "copy")
    check({"copy/m.safetensors": data})
    run("rclone", "check", "-l", "--config=/dev/null", plain, mounted.path / "copy")
