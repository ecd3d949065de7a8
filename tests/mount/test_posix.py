"""What a folder can do, the mount can: done on both and compared. What it cannot, it says as tools expect."""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brevisfs.fs import RecompressionOptions
from brevisfs.store import _syscalls
from tests.mount.conftest import Mount, Mounter

_HERE = -100
FICLONE = 0x40049409
Both = Callable[[Callable[[Path], Any]], Any]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@pytest.fixture
def mounted(mount: Mounter) -> Mount:
    return mount(recompression=RecompressionOptions(enabled=False))


@pytest.fixture
def both(mounted: Mount, tmp_path: Path) -> Both:
    """Does something in the mount and in a plain folder; the result, which must be the same."""
    plain = tmp_path / "plain"
    plain.mkdir()

    def both(do: Callable[[Path], Any]) -> Any:
        results = []
        for folder in (mounted.path, plain):
            try:
                results.append(do(folder))
            except OSError as error:
                results.append(errno.errorcode[error.errno or 0])
        assert results[0] == results[1]
        return results[0]

    return both


def renamed(folder: Path, old: str, new: str, flags: int) -> None:
    _syscalls._rename(_HERE, bytes(folder / old), _HERE, bytes(folder / new), flags)


def test_creating(both: Both) -> None:
    def exclusive(folder: Path) -> None:
        os.close(os.open(folder / "a", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))

    assert both(exclusive) is None
    assert both(exclusive) == "EEXIST"
    assert both(lambda folder: stat.S_IMODE((folder / "a").stat().st_mode)) == 0o640 & ~_umask()
    assert both(lambda folder: os.mkdir(folder / "a")) == "EEXIST"
    assert both(lambda folder: os.mkdir(folder / "none/a")) == "ENOENT"
    assert both(lambda folder: os.mkdir(folder / "a/b")) == "ENOTDIR"
    assert both(lambda folder: (folder / ("x" * 256)).touch()) == "ENAMETOOLONG"
    assert both(lambda folder: (folder / ("x" * 255)).touch()) is None
    assert both(lambda folder: os.mkfifo(folder / "fifo")) is None
    assert both(lambda folder: os.symlink("x" * 300, folder / "link")) is None
    assert both(lambda folder: os.readlink(folder / "link")) == "x" * 300

    # Read-only for its owner, and yet written by who has made it.
    def read_only(folder: Path) -> int:
        file = os.open(folder / "r", os.O_CREAT | os.O_RDWR, 0o400)
        try:
            return os.write(file, b"x")
        finally:
            os.close(file)

    assert both(read_only) == 1


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_writing(both: Both) -> None:
    def append(folder: Path) -> bytes:
        one = os.open(folder / "a", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        other = os.open(folder / "a", os.O_WRONLY | os.O_APPEND)
        for file in (one, other, one):
            os.pwrite(file, b"12", 0)
            os.write(file, b"345")
        os.close(one)
        os.close(other)
        return (folder / "a").read_bytes()

    assert both(append) == b"12345" * 3

    def sparse(folder: Path) -> tuple[int, bytes, bytes]:
        with (folder / "s").open("w+b") as file:
            file.truncate(1 << 33)
            file.seek(1 << 32)
            file.write(b"middle")
            file.seek(-5, os.SEEK_END)
            return os.fstat(file.fileno()).st_size, file.read(), os.pread(file.fileno(), 8, (1 << 32) - 1)

    assert both(sparse) == (1 << 33, bytes(5), b"\0middle\0")

    def mapped(folder: Path) -> bytes:
        with (folder / "m").open("w+b") as file:
            file.truncate(10_000)
            with mmap.mmap(file.fileno(), 10_000) as shared:
                shared[4090:4100] = b"0123456789"
        return (folder / "m").read_bytes()

    assert both(mapped) == bytes(4090) + b"0123456789" + bytes(5900)

    def truncated(folder: Path) -> list[bytes]:
        (folder / "t").write_bytes(b"12345678")
        os.truncate(folder / "t", 5)
        with (folder / "t").open("r+b") as file:
            file.truncate(7)
            found = [(folder / "t").read_bytes()]
        (folder / "t").open("wb").close()
        return [*found, (folder / "t").read_bytes()]

    assert both(truncated) == [b"12345\0\0", b""]
    assert both(lambda folder: os.truncate(folder, 0)) == "EISDIR"
    assert both(lambda folder: os.close(os.open(folder, os.O_WRONLY))) == "EISDIR"


def test_names(both: Both) -> None:
    def make(folder: Path) -> None:
        for name in ("a", "b"):
            (folder / name).write_text(name)
        for name in ("empty", "full/in"):
            (folder / name).mkdir(parents=True)

    both(make)
    assert both(lambda folder: renamed(folder, "a", "b", 1)) == "EEXIST"
    assert both(lambda folder: renamed(folder, "a", "none", 2)) == "ENOENT"
    assert both(lambda folder: renamed(folder, "a", "full", 2)) is None
    assert both(lambda folder: renamed(folder, "a", "full", 2)) is None
    assert both(lambda folder: os.rename(folder / "a", folder / "empty")) == "EISDIR"
    assert both(lambda folder: os.rename(folder / "empty", folder / "a")) == "ENOTDIR"
    assert both(lambda folder: os.rename(folder / "empty", folder / "full")) == "ENOTEMPTY"
    assert both(lambda folder: os.rename(folder / "full", folder / "full/in/x")) == "EINVAL"
    assert both(lambda folder: os.rename(folder / "full", folder / "empty")) is None
    assert both(lambda folder: os.rmdir(folder / "empty")) == "ENOTEMPTY"
    assert both(lambda folder: os.unlink(folder / "empty")) == "EISDIR"
    assert both(lambda folder: os.rmdir(folder / "a")) == "ENOTDIR"
    assert both(lambda folder: os.link(folder / "empty", folder / "l")) == "EPERM"
    assert both(lambda folder: os.link(folder / "a", folder / "b")) == "EEXIST"
    assert both(lambda folder: os.link(folder / "a", folder / "l")) is None
    assert both(lambda folder: os.rename(folder / "a", folder / "l")) is None
    assert both(lambda folder: (folder / "a").stat().st_nlink) == 2
    assert both(lambda folder: os.rename(folder / "b", folder / "l")) is None
    assert both(lambda folder: (folder / "a").stat().st_nlink) == 1
    assert both(lambda folder: (folder / "l").read_text()) == "b"
    assert both(lambda folder: sorted(os.listdir(folder))) == ["a", "empty", "l"]


def test_open_files_outlive_their_names(both: Both) -> None:
    def unlinked(folder: Path) -> tuple[Any, ...]:
        (folder / "a").write_bytes(b"old content")
        with (folder / "a").open("r+b") as file, (folder / "a").open("rb") as reader:
            os.unlink(folder / "a")
            (folder / "a").write_bytes(b"new")
            file.write(b"OLD")
            file.flush()
            os.fchmod(file.fileno(), 0o600)
            os.ftruncate(file.fileno(), 7)
            os.setxattr(file.fileno(), "user.a", b"b")
            again = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR)
            os.pwrite(again, b"!", 6)
            os.close(again)
            status = os.fstat(reader.fileno())
            return reader.read(), status.st_nlink, status.st_size, os.getxattr(file.fileno(), "user.a")

    assert both(unlinked) == (b"OLD con"[:6] + b"!", 0, 7, b"b")

    def replaced(folder: Path) -> tuple[bytes, bytes]:
        (folder / "b").write_bytes(b"old")
        with (folder / "b").open("rb") as file:
            (folder / "c").write_bytes(b"new")
            os.rename(folder / "c", folder / "b")
            return file.read(), (folder / "b").read_bytes()

    assert both(replaced) == (b"old", b"new")

    def removed_folder(folder: Path) -> str:
        (folder / "d").mkdir()
        descriptor = os.open(folder / "d", os.O_RDONLY)
        os.rmdir(folder / "d")
        try:
            os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        finally:
            os.close(descriptor)
        return "made"

    assert both(removed_folder) == "ENOENT"

    def used_when_removed(folder: Path, remove: Callable[[Path], None]) -> tuple[int, int, bytes]:
        (folder / "e").mkdir()
        descriptor = os.open(folder / "e", os.O_RDONLY)
        remove(folder / "e")
        os.fchmod(descriptor, 0o711)
        os.setxattr(descriptor, "user.a", b"b")
        os.utime(descriptor, ns=(5, 7))
        os.fsync(descriptor)
        status = os.fstat(descriptor)
        found = status.st_mode, status.st_nlink, os.getxattr(descriptor, "user.a")
        os.close(descriptor)
        return found

    def replaced_by_another(path: Path) -> None:
        path.with_name("other").mkdir()
        path.with_name("other").rename(path)

    for remove in (os.rmdir, replaced_by_another):
        found = both(partial(used_when_removed, remove=remove))
        assert found == (stat.S_IFDIR | 0o711, 0, b"b")


def test_locks(both: Both) -> None:
    def locked(folder: Path) -> list[str]:
        path = folder / "lock"
        path.touch()
        said = []
        for lock in (fcntl.flock, fcntl.lockf):
            with path.open("r+b") as one:
                lock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                command = f"import fcntl; fcntl.{lock.__name__}(open({str(path)!r}, 'r+b'), 6)"
                done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
                said.append(done.stderr.splitlines()[-1].split(":")[0])
                if lock is fcntl.flock:
                    os.unlink(path)
                    lock(one, fcntl.LOCK_UN)
                    lock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.touch()
        return said

    assert both(locked) == ["BlockingIOError"] * 2


def test_times(both: Both) -> None:
    def changes(folder: Path) -> list[tuple[str, ...]]:
        """Which times of a file and of its folder each step changes."""
        place = folder / "times"
        place.mkdir()
        path = place / "a"
        path.write_bytes(b"x" * 10)

        def there_and_back() -> None:
            os.rename(path, place / "c")
            os.rename(place / "c", path)

        steps: list[Callable[[], Any]] = [
            lambda: path.open("r+b").close(),
            lambda: path.write_bytes(b"y"),
            lambda: os.truncate(path, 1),
            lambda: os.truncate(path, 3),
            lambda: os.chmod(path, 0o600),
            lambda: os.chown(path, -1, os.getegid()),
            lambda: os.setxattr(path, "user.a", b"b"),
            lambda: os.removexattr(path, "user.a"),
            lambda: os.link(path, place / "b"),
            lambda: os.unlink(place / "b"),
            there_and_back,
            lambda: os.utime(path, ns=(5, 7)),
            lambda: os.utime(path),
        ]
        found = []
        for step in steps:
            before = path.stat(), place.stat()
            time.sleep(0.01)  # longer than the clock's tick
            step()
            after = path.stat(), place.stat()
            found.append(
                tuple(
                    f"{name} of {which}"
                    for which, was, now in zip(("file", "folder"), before, after, strict=True)
                    for name in ("st_mtime_ns", "st_ctime_ns")
                    if getattr(was, name) != getattr(now, name)
                )
            )
        return found

    found = both(changes)
    assert found[0] == ()
    assert found[4] == ("st_ctime_ns of file",)
    assert both(lambda folder: os.utime(folder / "times/a", ns=(10**18 + 1, 10**18 + 2))) is None
    assert both(lambda folder: (folder / "times/a").stat().st_mtime_ns) == 10**18 + 2


def test_attributes(both: Both) -> None:
    def attributes(folder: Path) -> list[Any]:
        (folder / "a").touch()
        (folder / "d").mkdir()
        found: list[Any] = []
        for path in (folder / "a", folder / "d"):
            os.setxattr(path, "user.one", b"1")
            os.setxattr(path, "user.two", b"2" * 1000)
            os.setxattr(path, "user.one", b"3", os.XATTR_REPLACE)
            found.append([(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))])
            os.removexattr(path, "user.one")
        return found

    both(attributes)
    assert both(lambda folder: os.setxattr(folder / "a", "user.two", b"", os.XATTR_CREATE)) == "EEXIST"
    assert both(lambda folder: os.setxattr(folder / "a", "user.no", b"", os.XATTR_REPLACE)) == "ENODATA"
    assert both(lambda folder: os.removexattr(folder / "a", "user.no")) == "ENODATA"
    assert both(lambda folder: os.getxattr(folder / "a", "user.no")) == "ENODATA"


def test_what_cannot_be_carried(mounted: Mount) -> None:
    def refusal(do: Callable[[], Any]) -> int | None:
        with pytest.raises(OSError) as caught:
            do()
        return caught.value.errno

    with (mounted.path / "a").open("w+b") as file, (mounted.path / "b").open("w+b") as other:
        file.write(b"12345")
        file.flush()
        libc = ctypes.CDLL(None, use_errno=True)
        # posix_fallocate of a C library falls back to writing; this is the system call.
        assert libc.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(100)) == -1
        assert ctypes.get_errno() == errno.EOPNOTSUPP
        os.posix_fallocate(file.fileno(), 0, 100)
        assert os.fstat(file.fileno()).st_size == 100
        clone = refusal(lambda: fcntl.ioctl(other, FICLONE, file.fileno()))
        assert clone in (errno.EOPNOTSUPP, errno.ENOTTY)
        assert os.copy_file_range(file.fileno(), other.fileno(), 100, 0, 0) == 100
        assert os.sendfile(other.fileno(), file.fileno(), 0, 50) == 50
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 100
        assert refusal(lambda: os.open(mounted.path, os.O_TMPFILE | os.O_RDWR)) == errno.EOPNOTSUPP


@as_root
def test_new_files_belong_to_who_makes_them(both: Both, tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(path, 0o755)

    def made(folder: Path) -> list[tuple[int, ...]]:
        for name, mode in (("open", 0o777), ("group", 0o2777)):
            (folder / name).mkdir()
            os.chmod(folder / name, mode)
        os.chown(folder / "group", 0, 50)
        script = "touch f; mkdir d; ln -s t l; mkfifo p; umask 027; touch g; cp g h; chmod u+s h"
        for name in ("open", "group"):
            subprocess.run(
                ["sh", "-ec", script], cwd=folder / name, user=33, group=34, extra_groups=[], check=True
            )
        paths = [path for name in ("open", "group") for path in sorted((folder / name).iterdir())]
        return [(s.st_uid, s.st_gid, s.st_mode) for s in (path.lstat() for path in paths)]

    found = both(made)
    assert {owner[:2] for owner in found[:6]} == {(33, 34)}
    assert {owner[:2] for owner in found[7:]} == {(33, 50)}


@as_root
def test_permissions_hold(both: Both, tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(path, 0o755)

    def attempts(folder: Path) -> list[int]:
        os.chmod(folder, 0o755)
        (folder / "theirs").write_text("x")
        (folder / "sticky").mkdir()
        os.chmod(folder / "sticky", 0o1777)
        (folder / "sticky/theirs").write_text("x")
        (folder / "s").write_text("x")
        os.chmod(folder / "s", 0o4777)
        commands = [
            *(
                "echo > theirs",
                "rm -f theirs",
                "chmod 777 theirs",
                "chown 33 theirs",
                "touch -d 2000-01-01 theirs",
            ),
            *("touch new", "rm -f sticky/theirs", "mv sticky/theirs sticky/mine", "touch sticky/mine"),
            *("echo y >> s", "test -u s"),
        ]
        return [
            subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                user=33,
                group=34,
                extra_groups=[],
                stderr=subprocess.DEVNULL,
            ).returncode
            for command in commands
        ]

    found = both(attempts)
    assert found[-3:] == [0, 0, 1]  # who writes to a file takes its privileges away
    assert all(found[:-3])


@as_root
def test_default_access_lists(both: Both) -> None:
    def made(folder: Path) -> list[str]:
        (folder / "d").mkdir()
        command = ["setfacl", "-m", "u:33:rwx,d:u:33:rwx,d:g::r-x,d:o::---", str(folder / "d")]
        if subprocess.run(command, check=False).returncode:
            pytest.skip("no access lists here")
        old = os.umask(0)
        (folder / "d/f").touch()
        (folder / "d/e").mkdir()
        os.umask(old)
        done = subprocess.run(
            ["getfacl", "-n", "-p", "-c", "f", "e"],
            cwd=folder / "d",
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert "user:33:rwx" in str(both(made))
