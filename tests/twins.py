"""A mount and a plain folder to which the same is done, and which must not differ afterwards."""

import errno
import mmap
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

from brevisfs.store import _syscalls

_HERE = -100  # AT_FDCWD


def model(seed: int) -> bytes:
    """A small safetensors file that packing makes smaller."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(500, 20_000))
    weights = chance.normal(0, 0.02, count).astype(np.float32)
    weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return save({"weights": weights, "step": np.array([seed], np.int64)})


class Seen(NamedTuple):
    """What a file or folder looks like, without what two filesystems cannot have in common."""

    type: int
    mode: int
    owner: tuple[int, int]
    links: int
    size: int
    target: str
    attributes: tuple[tuple[str, bytes], ...]
    mtime: int
    ctime: int
    number: int


def look(path: Path) -> Seen:
    status = path.lstat()
    folder, link = stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    return Seen(
        stat.S_IFMT(status.st_mode),
        stat.S_IMODE(status.st_mode),
        (status.st_uid, status.st_gid),
        0 if folder else status.st_nlink,
        0 if folder else status.st_size,
        os.readlink(path) if link else "",
        attributes,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )


def tree(top: Path) -> dict[str, Seen]:
    """Everything below a folder."""
    found: dict[str, Seen] = {}
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = Path(folder, name)
            found[str(path.relative_to(top))] = look(path)
    return found


# Times that a test sets are older than any that a clock sets.
_SET_BEFORE = 10**18


def compare(before: tuple[dict[str, Seen], ...], after: tuple[dict[str, Seen], ...]) -> None:
    """Asserts that two trees are the same, and that the same times in them have changed since `before`."""
    mounted, plain = after
    assert mounted.keys() == plain.keys()
    for name in mounted:
        one, other = mounted[name], plain[name]
        assert one[:7] == other[:7], name
        if min(one.mtime, other.mtime) < _SET_BEFORE:
            assert one.mtime == other.mtime, name
        if name in before[0] and name in before[1]:
            was_one, was_other = before[0][name], before[1][name]
            if other.number != was_other.number:
                continue  # two files, whose times may be the same on one side and not on the other
            assert (one.mtime == was_one.mtime) == (other.mtime == was_other.mtime), f"mtime of {name}"
            assert (one.ctime == was_one.ctime) == (other.ctime == was_other.ctime), f"ctime of {name}"


@dataclass
class Handle:
    """The same file open on both sides."""

    files: tuple[int, int]
    flags: int

    def close(self) -> None:
        for file in self.files:
            os.close(file)


class Twins:
    """Does random things to both sides and compares what comes of them."""

    def __init__(self, mounted: Path, plain: Path, chance: random.Random) -> None:
        self.sides = mounted, plain
        self.chance = chance
        self.handles: list[Handle] = []
        self.names = [
            f"{folder}{name}" for folder in ("", "a/", "b/") for name in ("m", "n", "o", "p", "text")
        ]
        self.names += ["a", "b", "a/sub", "x" * 252]
        self.log: list[str] = []
        self.before = tree(mounted), tree(plain)

    def both(self, what: str, do: Callable[[Path], Any]) -> list[Any]:
        """Does one thing on both sides; the results, or the error numbers, must be the same."""
        self.log.append(what)
        results = []
        for side in self.sides:
            try:
                results.append(do(side))
            except OSError as error:
                results.append(errno.errorcode[error.errno or 0])
        return results

    def same(self, what: str, do: Callable[[Path], Any]) -> Any:
        one, other = self.both(what, do)
        assert one == other, f"{what}: {_short(one)} on the mount, {_short(other)} in the folder"
        return one

    def check(self) -> None:
        """Compares names and metadata."""
        after = tree(self.sides[0]), tree(self.sides[1])
        compare(self.before, after)
        self.before = after

    def check_content(self) -> None:
        """Compares all bytes."""
        for name, seen in self.before[1].items():
            if seen.type == stat.S_IFREG:
                self.same(f"read {name}", lambda side, name=name: (side / name).read_bytes())  # type: ignore[misc]
        for handle in self.handles:
            files = dict(zip(self.sides, handle.files, strict=True))
            self.same("read a handle", lambda side, files=files: os.pread(files[side], 1 << 20, 0))  # type: ignore[misc]

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles = []

    def step(self) -> None:
        """One random thing."""
        self.chance.choice(self._steps)(self, self.chance.choice(self.names))

    # Whole files.

    def save(self, name: str) -> None:
        data = model(self.chance.randrange(1000))
        self.same(f"save {name}", lambda side: (side / name).write_bytes(data))

    def save_aside(self, name: str) -> None:
        data = model(self.chance.randrange(1000))

        def save(side: Path) -> None:
            with open(side / "aside.tmp", "wb") as file:
                file.truncate(len(data))
                file.seek(0)
                file.write(data)
                file.flush()
                os.chmod(side / "aside.tmp", 0o600)
                os.rename(side / "aside.tmp", side / name)

        self.same(f"save aside and rename to {name}", save)
        self.same("remove what is left", lambda side: (side / "aside.tmp").unlink(missing_ok=True))

    def write_text(self, name: str) -> None:
        data = self.chance.randbytes(self.chance.randrange(5000))
        self.same(f"write {name}", lambda side: (side / name).write_bytes(data))

    def make(self, name: str) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        mode = self.chance.choice([0o600, 0o644, 0o4755, 0o2770])
        self.same(f"create {name}", lambda side: os.close(os.open(side / name, flags, mode)))

    # Parts of files.

    def overwrite(self, name: str) -> None:
        data, share = self.chance.randbytes(self.chance.randrange(1, 3000)), self.chance.random()

        def write(side: Path) -> None:
            with open(side / name, "r+b", buffering=0) as file:
                file.seek(int(share * os.fstat(file.fileno()).st_size))
                file.write(data)

        self.same(f"overwrite {len(data)} in {name} at {share}", write)

    def append(self, name: str) -> None:
        data = self.chance.randbytes(self.chance.randrange(1, 3000))

        def write(side: Path) -> None:
            file = os.open(side / name, os.O_WRONLY | os.O_APPEND)
            os.write(file, data[:100])
            os.write(file, data[100:])
            os.close(file)

        self.same(f"append {len(data)} to {name}", write)

    def truncate(self, name: str) -> None:
        share = self.chance.choice([0, 0.5, 1.5, self.chance.random()])
        self.same(
            f"truncate {name} to {share}",
            lambda side: os.truncate(side / name, int(share * (side / name).stat().st_size)),
        )

    def write_mapped(self, name: str) -> None:
        share, byte = self.chance.random(), self.chance.randrange(256)

        def write(side: Path) -> None:
            with open(side / name, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size:
                    with mmap.mmap(file.fileno(), size) as mapped:
                        mapped[int(share * size)] = byte

        self.both(f"write to a map of {name}", write)
        # A map's times may change when the kernel writes it back, and that is any time.
        self.before = tree(self.sides[0]), tree(self.sides[1])

    # Names.

    def rename(self, name: str) -> None:
        new = self.chance.choice(self.names)
        self.same(f"rename {name} to {new}", lambda side: os.rename(side / name, side / new))

    def move(self, name: str) -> None:
        new = self.chance.choice(self.names)
        self.same(
            f"rename {name} to {new}, not replacing",
            lambda side: _syscalls._rename(_HERE, bytes(side / name), _HERE, bytes(side / new), 1),
        )

    def exchange(self, name: str) -> None:
        new = self.chance.choice(self.names)
        self.same(
            f"exchange {name} and {new}",
            lambda side: _syscalls.exchange(_HERE, bytes(side / name), _HERE, bytes(side / new)),
        )

    def unlink(self, name: str) -> None:
        self.same(f"unlink {name}", lambda side: os.unlink(side / name))

    def link(self, name: str) -> None:
        new = self.chance.choice(self.names)
        self.same(
            f"link {name} as {new}", lambda side: os.link(side / name, side / new, follow_symlinks=False)
        )

    def symlink(self, name: str) -> None:
        target = self.chance.choice(self.names)
        self.same(f"symlink {name} to {target}", lambda side: os.symlink(target, side / name))

    def mkdir(self, name: str) -> None:
        self.same(f"mkdir {name}", lambda side: os.mkdir(side / name, 0o755))

    def rmdir(self, name: str) -> None:
        self.same(f"rmdir {name}", lambda side: os.rmdir(side / name))

    # Metadata.

    def chmod(self, name: str) -> None:
        mode = self.chance.choice([0o600, 0o640, 0o755, 0o6755])
        self.same(f"chmod {name} {mode:o}", lambda side: os.chmod(side / name, mode))

    def chown(self, name: str) -> None:
        user, group = self.chance.choice([0, 1, 33]), self.chance.choice([-1, 0, 7])
        self.same(
            f"chown {name} {user}:{group}",
            lambda side: os.chown(side / name, user, group, follow_symlinks=False),
        )

    def utime(self, name: str) -> None:
        times = self.chance.randrange(10**17), self.chance.randrange(10**17)
        self.same(f"utime {name}", lambda side: os.utime(side / name, ns=times, follow_symlinks=False))

    def setxattr(self, name: str) -> None:
        key, value = f"user.{self.chance.randrange(3)}", self.chance.randbytes(self.chance.randrange(50))
        self.same(f"setxattr {name} {key}", lambda side: os.setxattr(side / name, key, value))

    def removexattr(self, name: str) -> None:
        key = f"user.{self.chance.randrange(3)}"
        self.same(f"removexattr {name} {key}", lambda side: os.removexattr(side / name, key))

    # Handles that stay open.

    def open_handle(self, name: str) -> None:
        flags = self.chance.choice([os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
        if len(self.handles) < 5:
            opened = self.both(f"open {name} {flags:o}", lambda side: os.open(side / name, flags, 0o644))
            assert isinstance(opened[0], str) == isinstance(opened[1], str), opened
            if not isinstance(opened[0], str):
                self.handles.append(Handle((opened[0], opened[1]), flags))

    def use_handle(self, name: str) -> None:
        if not self.handles:
            return
        handle = self.chance.choice(self.handles)
        offset, length = self.chance.randrange(50_000), self.chance.randrange(1, 20_000)
        data = self.chance.randbytes(length)
        mode = self.chance.choice([0o600, 0o644])
        use: list[Callable[[int], Any]] = [
            lambda file: os.pread(file, length, offset),
            lambda file: os.pread(file, length, offset),
            lambda file: os.pwrite(file, data, offset),
            lambda file: os.ftruncate(file, offset),
            lambda file: os.fchmod(file, mode),
            lambda file: os.fstat(file).st_size,
            lambda file: os.fstat(file).st_nlink,
            lambda file: os.fsync(file),
        ]
        chosen = self.chance.randrange(len(use))
        files = dict(zip(self.sides, handle.files, strict=True))
        self.same(f"use {chosen} of a handle {handle.flags:o}", lambda side: use[chosen](files[side]))

    def close_handle(self, name: str) -> None:
        if self.handles:
            self.log.append("close a handle")
            self.handles.pop(self.chance.randrange(len(self.handles))).close()

    _steps = (
        *(save, save, save, save_aside, save_aside, write_text, make),
        *(overwrite, overwrite, append, truncate, write_mapped),
        *(rename, rename, rename, move, exchange, unlink, link, symlink, mkdir, mkdir, rmdir),
        *(chmod, chown, utime, setxattr, removexattr),
        *(open_handle, use_handle, use_handle, use_handle, close_handle),
    )


def _short(result: Any) -> str:
    return f"{len(result)} bytes" if isinstance(result, bytes) else repr(result)
