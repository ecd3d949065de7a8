"""The store's tree, shown as it is but for the archives."""

import errno
import os
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import Mounter
from tests.stores import add_archive, noise


def test_names(mount: Mounter, store: Path) -> None:
    data = add_archive(store / "m.safetensors.brv", [noise(1000)])
    raw = add_archive(store / "both.brv", [noise(900, 1)])
    (store / "both").write_bytes(b"the raw file wins")
    pending = add_archive(store / "p.brv+", [noise(800, 2)])
    (store / "p").write_bytes(b"loses")
    (store / "note.brv").write_text("just text")
    (store / "config.json").write_text("{}")
    mounted = mount()
    assert sorted(os.listdir(mounted.path)) == ["both", "config.json", "m.safetensors", "note.brv", "p"]
    assert (mounted.path / "m.safetensors").read_bytes() == data
    assert (mounted.path / "both").read_bytes() == b"the raw file wins" != raw
    assert (mounted.path / "p").read_bytes() == pending
    assert (mounted.path / "note.brv").read_text() == "just text"
    for hidden in ("m.safetensors.brv", "both.brv", "p.brv+", "p.brv", ".brevisfs", ".brevisfs/lock"):
        assert not os.path.lexists(mounted.path / hidden), hidden
    assert (store / ".brevisfs/lock").exists()


def test_attributes(mount: Mounter, store: Path) -> None:
    data = add_archive(store / "m.brv", [bytes(500_000)])
    os.chmod(store / "m.brv", 0o640)
    os.chown(store / "m.brv", os.getuid(), os.getgid())
    os.utime(store / "m.brv", ns=(10**18, 10**18 + 123_456_789))
    os.sync()
    mounted = mount()
    seen, backing = (mounted.path / "m").stat(), (store / "m.brv").stat()
    assert seen.st_size == len(data)
    assert seen.st_blocks == backing.st_blocks > 0
    same = ("st_mode", "st_uid", "st_gid", "st_nlink", "st_mtime_ns", "st_ctime_ns")
    assert [getattr(seen, name) for name in same] == [getattr(backing, name) for name in same]
    assert os.getxattr(mounted.path / "m", "user.brevisfs.state") == b"archive"
    assert os.listxattr(mounted.path / "m") == os.listxattr(store / "m.brv")


def test_no_file_with_bytes_is_without_blocks(mount: Mounter, store: Path) -> None:
    """tar -S archives such a file as zeros."""
    with (store / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    add_archive(store / "m.brv", [noise(10)])
    (store / "empty").touch()
    mounted = mount()
    assert (mounted.path / "sparse").stat().st_blocks > 0
    assert (mounted.path / "m").stat().st_blocks > 0
    assert (mounted.path / "empty").stat().st_blocks == 0


def test_tar_keeps_every_byte(mount: Mounter, store: Path, tmp_path: Path) -> None:
    data = add_archive(store / "m.brv", [noise(200_000)])
    mounted = mount()
    subprocess.run(["tar", "-S", "-C", mounted.path, "-cf", tmp_path / "t.tar", "m"], check=True)
    subprocess.run(["tar", "-C", tmp_path, "-xf", tmp_path / "t.tar"], check=True)
    assert (tmp_path / "m").read_bytes() == data


def test_symlinks(mount: Mounter, store: Path, tmp_path: Path) -> None:
    data = add_archive(store / "blob.brv", [noise(1000)])
    (tmp_path / "outside").write_text("outside")
    (store / "snapshots").mkdir()
    (store / "snapshots/m.safetensors").symlink_to("../blob")
    (store / "absolute").symlink_to(tmp_path / "outside")
    (store / "dangling.brv").symlink_to("nowhere")
    mounted = mount()
    assert (mounted.path / "snapshots/m.safetensors").read_bytes() == data
    assert os.readlink(mounted.path / "snapshots/m.safetensors") == "../blob"
    # By whoever asks, not by the daemon: in the asker's own tree.
    assert (mounted.path / "absolute").read_text() == "outside"
    assert os.readlink(mounted.path / "dangling.brv") == "nowhere"
    assert (mounted.path / "absolute").lstat().st_size == len(os.readlink(mounted.path / "absolute"))


def test_a_folder_swapped_for_a_symlink_leads_nowhere(mount: Mounter, store: Path, tmp_path: Path) -> None:
    (store / "folder").mkdir()
    (store / "folder/x").write_text("inside")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").write_text("secret")
    mounted = mount()
    folder = os.open(mounted.path / "folder", os.O_RDONLY)
    try:
        assert os.listdir(folder) == ["x"]
        (store / "folder").rename(store / "away")
        (store / "folder").symlink_to(tmp_path / "out")
        with pytest.raises(OSError) as caught:
            os.open("y", os.O_RDONLY, dir_fd=folder)
        assert caught.value.errno in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR)
        with pytest.raises(OSError):
            os.listdir(folder)
    finally:
        os.close(folder)


def test_names_that_are_no_text(mount: Mounter, store: Path) -> None:
    names = [b"caf\xe9\xff", b"line\nbreak", "模型 🧠".encode(), b"-", b"a" * 255, b"b" * 251]
    for index, name in enumerate(names):
        (store / os.fsdecode(name)).write_bytes(b"%d" % index)
    data = add_archive(store / os.fsdecode(b"\xfe\xff.brv"), [noise(77)])
    mounted = mount()
    assert sorted(os.listdir(os.fsencode(mounted.path))) == sorted([*names, b"\xfe\xff"])
    for index, name in enumerate(names):
        assert (mounted.path / os.fsdecode(name)).read_bytes() == b"%d" % index
    assert (mounted.path / os.fsdecode(b"\xfe\xff")).read_bytes() == data


def test_deep_folders(mount: Mounter, store: Path) -> None:
    """Deeper than a path can name: every access goes folder by folder."""
    name, depth = "d" * 200, 30
    below = os.open(store, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=below)
        deeper = os.open(name, os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    file = os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=below)
    os.write(file, b"deep")
    os.close(file)
    os.close(below)
    mounted = mount()
    below = os.open(mounted.path, os.O_RDONLY)
    for _ in range(depth):
        deeper = os.open(name, os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    with os.fdopen(os.open("x", os.O_RDONLY, dir_fd=below), "rb") as stream:
        assert stream.read() == b"deep"
    os.close(below)


def test_a_large_folder(mount: Mounter, store: Path) -> None:
    (store / "many").mkdir()
    names = [f"{index:05d}-{'n' * 60}" for index in range(3000)]
    for name in names:
        (store / "many" / name).touch()
    mounted = mount()
    assert sorted(os.listdir(mounted.path / "many")) == names
    with os.scandir(mounted.path / "many") as entries:
        numbers = {entry.inode() for entry in entries}
    assert len(numbers) == len(names)


def test_other_kinds_of_files(mount: Mounter, store: Path) -> None:
    os.mkfifo(store / "pipe")
    (store / "a").write_text("x")
    os.link(store / "a", store / "b")
    mounted = mount()
    assert stat.S_ISFIFO((mounted.path / "pipe").stat().st_mode)
    a, b = (mounted.path / "a").stat(), (mounted.path / "b").stat()
    assert (a.st_nlink, a.st_ino) == (2, b.st_ino)


def test_statfs_is_that_of_the_store(mount: Mounter, store: Path) -> None:
    mounted = mount(read_only=True)
    seen, backing = os.statvfs(mounted.path), os.statvfs(store)
    assert (seen.f_frsize, seen.f_blocks, seen.f_files) == (
        backing.f_frsize,
        backing.f_blocks,
        backing.f_files,
    )
    assert seen.f_bavail > 0
    assert seen.f_flag & os.ST_RDONLY


def test_writing_is_refused_if_asked(mount: Mounter, store: Path) -> None:
    (store / "x").write_text("x")
    mounted = mount(read_only=True)
    attempts: list[Callable[[], object]] = [
        lambda: (mounted.path / "x").open("w"),
        lambda: (mounted.path / "new").touch(),
        lambda: (mounted.path / "new").mkdir(),
        lambda: (mounted.path / "x").unlink(),
        lambda: (mounted.path / "x").rename(mounted.path / "y"),
        lambda: os.truncate(mounted.path / "x", 0),
        lambda: os.chmod(mounted.path / "x", 0o600),
        lambda: os.utime(mounted.path / "x"),
        lambda: os.setxattr(mounted.path / "x", "user.a", b"b"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS
    assert (store / "x").read_text() == "x"


def access_list(user: int) -> bytes:
    """Lets `user` read, and nobody but the owner otherwise; in the form the kernel keeps, see acl(5)."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, 4, user), (4, 0, nobody), (16, 4, nobody), (32, 0, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_access_lists_count(mount: Mounter, store: Path, tmp_path: Path) -> None:
    """Modes alone would let the group in where the list lets one user in."""
    add_archive(store / "m.brv", [noise(10)])
    try:
        os.setxattr(store / "m.brv", "system.posix_acl_access", access_list(65534))
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip("no access lists on this filesystem")
    mounted = mount()
    for path in (tmp_path, *tmp_path.parents[:2], store):
        os.chmod(path, 0o755)

    def reads(user: int) -> bool:
        command = ["cat", str(mounted.path / "m")]
        done = subprocess.run(command, user=user, group=0, extra_groups=[], capture_output=True, check=False)
        return done.returncode == 0

    assert reads(65534)
    assert not reads(65533)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_other_users_see_what_the_modes_let_them(mount: Mounter, store: Path, tmp_path: Path) -> None:
    add_archive(store / "open.brv", [noise(10)])
    add_archive(store / "closed.brv", [noise(10)])
    os.chmod(store / "open.brv", 0o644)
    os.chmod(store / "closed.brv", 0o600)
    mounted = mount()
    for path in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(path, 0o755)
    os.chmod(store, 0o755)

    def reads(name: str) -> bool:
        done = subprocess.run(["cat", mounted.path / name], user=65534, capture_output=True, check=False)
        return done.returncode == 0 and done.stdout == noise(10)

    assert reads("open")
    assert not reads("closed")
