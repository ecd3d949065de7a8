"""Writing through a mount next to a bare pass-through: `python -m bench.write [--quick] [DIR]`.

One file is written from its beginning in pieces of one size, in turn to a folder, through a pass-through
mount of it and through BrevisFS without recompression, and the medians are compared. Nothing is synced, so
that it is the way to the page cache which is measured. DIR is where the files go (a temporary folder).
"""

import argparse
import errno
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from bench import passthrough
from brevisfs.fs import MountOptions, RecompressionOptions, mount_background, umount

PIECES = (1 << 20, 128 << 10, 4 << 10)


class WritablePassThrough(passthrough.PassThrough):
    """A folder in which files can be made and written."""

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        path = os.path.join(self._paths[parent_inode], name)
        file = os.open(path, (flags & os.O_ACCMODE) | os.O_CREAT | os.O_EXCL, mode)
        return FileInfo(fh=file), self._found(path)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return os.pwrite(fh, buf, off)

    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        raise FUSEError(errno.ENOSYS)

    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext | None = None) -> None:
        os.unlink(os.path.join(self._paths[parent_inode], name))


def write(path: Path, size: int, piece: int) -> float:
    """Bytes a second at which a new file is written; it is removed again."""
    data = memoryview(os.urandom(piece))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    began = time.perf_counter()
    for _ in range(size // piece):
        os.write(file, data)
    os.close(file)
    speed = size / (time.perf_counter() - began)
    path.unlink()
    return speed


def measure(folders: dict[str, Path], size: int, piece: int, rounds: int) -> dict[str, float]:
    """The median speed in each folder, in turn."""
    speeds: dict[str, list[float]] = {name: [] for name in folders}
    for _ in range(rounds):
        for name, folder in folders.items():
            speeds[name].append(write(folder / "file", size, piece))
    return {name: statistics.median(found) for name, found in speeds.items()}


def main() -> None:
    """Mounts, measures, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as top:
        folder, passed, store, mounted = (Path(top, name) for name in ("plain", "passed", "store", "mounted"))
        for path in (folder, passed, store, mounted):
            path.mkdir()
        command = [sys.executable, "-m", "bench.write", "--serve", str(folder), str(passed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as serving:
            assert serving.stdout is not None
            assert serving.stdout.readline() == b"answers\n"
            options = MountOptions(recompression=RecompressionOptions(enabled=False), log=Path(top, "log"))
            mount_background(store, mounted, options)
            try:
                _report({"folder": folder, "pass-through": passed, "BrevisFS": mounted}, chosen.quick)
            finally:
                umount(mounted)
                subprocess.run(["fusermount3", "-u", passed], check=True)


def _report(folders: dict[str, Path], quick: bool) -> None:
    print(f"{'piece':>10} {'folder':>10} {'pass-through':>14} {'BrevisFS':>10}  of pass-through")
    for piece in PIECES:
        size = 16384 * min(piece, 32768) // (64 if quick else 1)
        found = measure(folders, size, piece, 1 if quick else 5)
        speeds = [f"{found[name] / 1e6:.0f} MB/s" for name in folders]
        ratio = found["BrevisFS"] / found["pass-through"]
        print(f"{piece:>10} {speeds[0]:>10} {speeds[1]:>14} {speeds[2]:>10}  {ratio:.2f}")


def serve(source: str, mountpoint: str) -> None:
    """Serves a pass-through until it is unmounted."""
    options = {"default_permissions", "fsname=passthrough"}
    pyfuse3.init(WritablePassThrough(Path(source)), mountpoint, options)
    try:
        trio.run(passthrough._serve, mountpoint)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
