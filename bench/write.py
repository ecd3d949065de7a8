"""Writing through a mount next to a bare pass-through, and reading while a worker packs.

`python -m bench.write [--quick] [--only write|packing] [DIR]`. DIR is where the files go, a temporary folder
else.

Writing: one file is written from its beginning in pieces of one size, in turn to a folder, through a
pass-through mount of it and through BrevisFS without recompression, and compared round by round. Nothing is
synced, so that it is the way to the page cache which is measured.

Packing: an archive is read through the mount, by turns while packing of another file is paused and while it
goes on. The backing file is in memory, nothing of the mount is.
"""

import argparse
import errno
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from bench import loads, passthrough
from bench.loads import Load
from bench.measure import Spread, per_round
from bench.mount import System, make_model, pack
from bench.report import shown
from brevisfs.fs import MountOptions, RecompressionOptions, command, mount_background, status, umount

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


@dataclass
class Times:
    """Of one system, a figure a round: seconds on the clock, and the daemon's of processor time."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def measure(systems: Sequence[System], size: int, piece: int, rounds: int) -> dict[str, Times]:
    """How long each takes to write a file, by turns."""
    times = {system.name: Times() for system in systems}
    for _ in range(rounds):
        for system in systems:
            processor = system.processor()
            times[system.name].clock.append(size / write(system.folder / "file", size, piece))
            times[system.name].processor.append(system.processor() - processor)
    return times


def main() -> None:
    """Measures what is asked for, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("write", "packing"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as top:
        if chosen.only != "packing":
            writing(Path(top, "writing"), chosen.quick)
        if chosen.only != "write":
            packing(Path(top, "packing"), chosen.quick)


def writing(top: Path, quick: bool) -> None:
    """Prints speeds of writing."""
    folder, passed, store, mounted = (top / name for name in ("plain", "passed", "store", "mounted"))
    for path in (folder, passed, store, mounted):
        path.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.write", "--serve", str(folder), str(passed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == b"answers\n"
        options = MountOptions(recompression=RecompressionOptions(enabled=False), log=top / "log")
        daemon = mount_background(store, mounted, options)
        systems = [
            System("folder", folder, folder),
            System("pass-through", passed, folder, daemon=serving.pid),
            System("BrevisFS", mounted, store, daemon=daemon),
        ]
        try:
            _report(systems, quick)
        finally:
            umount(mounted)
            subprocess.run(["fusermount3", "-u", passed], check=True)


def _report(systems: Sequence[System], quick: bool) -> None:
    _, peer, ours = systems
    # The last two are the processor time of the daemons.
    print(f"{'piece':>8} {'folder':>10} {'pass-through':>13} {'BrevisFS':>10}  of pass-through; ms/GB")
    for piece in PIECES:
        size = 16384 * min(piece, 32768) // (64 if quick else 1)
        found = measure(systems, size, piece, 1 if quick else 7)
        medians = [statistics.median(found[system.name].clock) for system in systems]
        speeds = [f"{size / seconds / 1e6:.0f} MB/s" for seconds in medians]
        ratio = shown(per_round(found[peer.name].clock, found[ours.name].clock))
        taken = [round(statistics.mean(found[one.name].processor) * 1e12 / size) for one in (peer, ours)]
        line = f"{piece:>8} {speeds[0]:>10} {speeds[1]:>13} {speeds[2]:>10}  {ratio}"
        print(f"{line}; {taken[0]} and {taken[1]}")


BESIDE = {
    "sequential": loads.sequential,
    "load_file": loads.load,
    "random 1 MiB": loads.at_random(loads.CHUNK, 100),
    "random 4 KiB": loads.at_random(4096, 1000),
}


def packing(top: Path, quick: bool) -> None:
    """Prints how long reading takes while a worker packs, next to reading alone."""
    store, mounted = top / "store", top / "mounted"
    for path in (store, mounted):
        path.mkdir(parents=True)
    megabytes, other, rounds = (2, 100, 1) if quick else (200, 1600, 7)
    make_model(store / "other", other * 10**6, 1)  # which takes longer to be packed than all that is measured
    make_model(top / "model", megabytes * 10**6, 0)
    pack(top / "model", store / "model.brv", "balanced")
    recompression = RecompressionOptions(settle=0, max_load=1000, profile="dense")
    daemon = mount_background(store, mounted, MountOptions(recompression=recompression, log=top / "log"))
    try:
        system = System("mount", mounted, store, ".brv", daemon)
        while not _is_packing(mounted):
            time.sleep(0.01)
        print(f"{'read':>14}  times as long while a worker packs")
        for name, load in BESIDE.items():
            print(f"{name:>14}  {shown(beside(system, load, rounds))}")
    finally:
        umount(mounted)


def beside(system: System, load: Load, rounds: int) -> Spread:
    """How many times as long a load takes while a worker works, round by round."""
    alone: list[float] = []
    together: list[float] = []
    for number in range(-1, rounds):
        with _paused(system.folder):
            seconds = _time(system, load)
        both = _time(system, load)
        if number >= 0:
            alone.append(seconds)
            together.append(both)
    return per_round(together, alone)


def _time(system: System, load: Load) -> float:
    system.prepare(["model"], "mount cold")
    began = time.perf_counter()
    load(system.files(["model"]))
    return time.perf_counter() - began


def _is_packing(mounted: Path) -> bool:
    return any(job["total"] for job in status(mounted)["recompression"]["packing"])


@contextmanager
def _paused(mounted: Path) -> Iterator[None]:
    command(mounted, "pause")
    try:
        yield
    finally:
        command(mounted, "resume")
        if not _is_packing(mounted):
            raise RuntimeError("packing came to its end before all was measured")


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
