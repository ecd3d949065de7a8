"""How fast models read through a mount, next to the file itself and to a bare pass-through mount.

One run, everything by turns, so that ratios hold on a machine that is shared: each round does each load in
each state on each system, one after the other. States: `cold`, nothing cached anywhere; `mount cold`, the
backing file in memory but nothing of the mount, which shows what the mount itself costs; `decoded`, the same
after the daemon has answered the same requests before; `warm`, all in the kernel's page cache. Ratios are
speeds: above 1 is faster than the pass-through. `--throttle` limits what the disk reads a second (control
group blkio, as root), and then only `cold` is measured. At 1 GB/s some of the first 100 MB pass unlimited:
that counts for little with `--megabytes 3072`.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from bench import loads
from bench.loads import Load
from bench.measure import per_round, spread
from bench.report import SPREAD, Figure, Report
from bench.throttle import throttled
from brevisfs import synth

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from mounted import COMMAND

STATES = ("cold", "mount cold", "decoded", "warm")
SHARDS = 8
TINY = "tiny"
PROFILES = ("fast", "balanced")
PEER = "pass-through"
_TICKS = os.sysconf("SC_CLK_TCK")
_BETWEEN = 0.002
_LONG = 0.25
_PERCENTS = (50, 90, 99)


@dataclass
class System:
    """One way to the same models: where they are seen, what backs them, and which process answers."""

    name: str
    folder: Path
    backing: Path
    suffix: str = ""
    daemon: int | None = None

    def files(self, names: Sequence[str]) -> list[Path]:
        return [self.folder / name for name in names]

    def prepare(self, names: Sequence[str], state: str, load: Load = loads.sequential) -> None:
        """Brings the files into a state, before `load`."""
        behind = [self.backing / f"{name}{self.suffix}" for name in names]
        if state == "warm":
            loads.sequential(self.files(names))
            return
        if self.suffix:
            for file in behind:
                os.utime(file)  # another state of the file, of which the daemon has nothing
        if state == "decoded":
            load(self.files(names))
        for file in self.files(names):
            drop_pages(file)
        if state == "cold":
            for file in behind:
                drop_pages(file)
        else:
            loads.sequential(behind)

    def processor(self) -> float:
        """Seconds of processor time that the daemon has taken."""
        if self.daemon is None:
            return 0.0
        fields = Path(f"/proc/{self.daemon}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak(self) -> float:
        """The most memory the daemon has had, in MB."""
        if self.daemon is None:
            return 0.0
        status = Path(f"/proc/{self.daemon}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6


@dataclass
class Times:
    """Of one load in one state on one system, a figure a round; `processor` is the daemon's."""

    bytes: int = 0
    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def main() -> int:
    arguments = _arguments()
    report = Report()
    with ExitStack() as held:
        work = arguments.work or Path(
            held.enter_context(tempfile.TemporaryDirectory(prefix="brevisfs-bench-"))
        )
        for threads in arguments.threads:
            with prepared(work, arguments, threads) as systems:
                measure(report, work, systems, arguments, f"{threads} decoding threads")
        if not arguments.throttle and arguments.only in (None, "list"):
            listings(report, work, arguments)
    report.end()
    if arguments.json:
        report.write(arguments.json, {"rounds": arguments.rounds, "megabytes": arguments.megabytes})
    return 0


def measure(
    report: Report, work: Path, systems: list[System], arguments: argparse.Namespace, title: str
) -> None:
    everything = loads.everything(torch=not arguments.quick)
    chosen = {name: load for name, load in everything.items() if arguments.only in (None, name)}
    daemons = [system.daemon for system in systems if system.daemon]
    for limit in arguments.throttle:
        with throttled(work, limit, daemons):
            compare(report, systems, chosen, ("cold",), arguments.rounds, f"{title}, disk at {limit} MB/s")
    if not arguments.throttle:
        compare(report, systems, chosen, STATES, arguments.rounds, title)
        if arguments.only in (None, "fairness"):
            fairness(report, systems, arguments.rounds, title)
        memory(report, systems, title)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="a safetensors file; without it BF16 weights are made")
    parser.add_argument("--megabytes", type=int, default=256, help="of the model that is made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="one load, `list` or `fairness`")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="that decode, one after another")
    parser.add_argument("--cache-size", default="512M")
    parser.add_argument(
        "--throttle", type=int, nargs="+", default=[], metavar="MB", help="limits of the disk, in MB/s"
    )
    parser.add_argument("--work", type=Path, help="a folder to work in, where models stay for the next time")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or [len(os.sched_getaffinity(0))]
    if arguments.quick:
        arguments.megabytes, arguments.rounds = 2, 1
    return arguments


@contextmanager
def prepared(work: Path, arguments: argparse.Namespace, threads: int) -> Iterator[list[System]]:
    """The models packed, and every system ready."""
    plain, store = work / "plain", work / "store"
    _make(plain, store, arguments)
    with ExitStack() as held:
        mounts = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mounts-", dir=work)))
        passed, daemon = held.enter_context(passing_through(plain, mounts / "peer"))
        systems = [System("file", plain, plain), System(PEER, passed, plain, daemon=daemon)]
        mounted, daemon = held.enter_context(brevisfs(store, mounts / "brevisfs", arguments, threads))
        for profile in PROFILES:
            systems.append(System(profile, mounted / profile, store / profile, ".brv", daemon))
        systems.append(System("raw", mounted / "raw", store / "raw", "", daemon))
        yield systems


def _make(plain: Path, store: Path, arguments: argparse.Namespace) -> None:
    """What is not there from the last time."""
    size = arguments.megabytes * 10**6
    sizes = {"model": size, **{f"shard{number}": size // SHARDS for number in range(SHARDS)}, TINY: 0}
    for folder in (plain, *(store / name for name in (*PROFILES, "raw"))):
        folder.mkdir(parents=True, exist_ok=True)
    for number, (name, size) in enumerate(sizes.items()):
        if (store / "raw" / name).exists():
            continue
        if arguments.model and size:
            shutil.copy(arguments.model, plain / name)
        else:
            make_model(plain / name, size, number)
        for profile in PROFILES:
            pack(plain / name, store / profile / f"{name}.brv", profile)
        os.link(plain / name, store / "raw" / name)
    os.sync()


def make_model(path: Path, size: int, seed: int) -> None:
    """About `size` bytes of BF16 weights in matrices of at most 8 MB, whose rows have scales of their own."""
    chance = np.random.default_rng(seed)
    columns = 1024
    rows = max(1, min(4096, size // columns // 2))
    base = chance.normal(0, 1, rows * columns + columns * 64).astype(np.float32)
    tensors = {}
    for number in range(max(1, size // (rows * columns * 2))):
        scale = np.exp2(chance.integers(-9, -4, (rows, 1))).astype(np.float32)
        start = int(chance.integers(columns * 64))
        weights = base[start : start + rows * columns].reshape(rows, columns) * scale
        tensors[f"layer.{number}.weight"] = weights.astype(ml_dtypes.bfloat16)
        tensors[f"layer.{number}.bias"] = weights[0].astype(ml_dtypes.bfloat16)
    save_file(tensors, path)


def pack(source: Path, archive: Path, profile: str) -> None:
    with source.open("rb") as original, archive.open("w+b") as out:
        synth.pack(original.fileno(), out.fileno(), profile=synth.Profile(profile), jobs=2)


@contextmanager
def passing_through(source: Path, mountpoint: Path) -> Iterator[tuple[Path, int]]:
    """The peer, mounted for the length of the block, with its process id."""
    mountpoint.mkdir()
    command = [sys.executable, "-m", "bench.passthrough", str(source), str(mountpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        try:
            if not daemon.stdout.readline():
                raise RuntimeError("the pass-through mount did not come up")
            yield mountpoint, daemon.pid
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False)


@contextmanager
def brevisfs(
    store: Path, mountpoint: Path, arguments: argparse.Namespace, threads: int
) -> Iterator[tuple[Path, int]]:
    """The store, mounted for the length of the block, with the daemon's process id."""
    mountpoint.mkdir()
    command = [COMMAND, "mount", str(store), str(mountpoint), "--read-only"]
    command += ["--cache-size", arguments.cache_size, "--threads", str(threads)]
    subprocess.run([*command, "--log", str(mountpoint.with_suffix(".log"))], check=True)
    try:
        yield mountpoint, int(os.getxattr(mountpoint, "user.brevisfs.pid"))
    finally:
        subprocess.run([COMMAND, "umount", str(mountpoint)], check=True)


def compare(
    report: Report,
    systems: list[System],
    chosen: dict[str, Load],
    states: Sequence[str],
    rounds: int,
    title: str,
) -> None:
    """A table of every load in every state."""
    times: dict[tuple[str, str, str], Times] = {}
    for number in range(-1, rounds):
        for name, load in chosen.items():
            names = [f"shard{shard}" for shard in range(SHARDS)] if load is loads.threads else ["model"]
            for state in states_of(name, states):
                for system in systems:
                    measured = times.setdefault((name, state, system.name), Times())
                    if number >= 0:
                        one_round(system, names, state, load, measured)
                    else:
                        measured.bytes = load(system.files(names))
    columns = {"load": 14, "state": 11, "system": 13, "MB/s": 7}
    columns |= {"of pass-through": SPREAD, "of the file": SPREAD, "daemon ms/GB": 12}
    report.begin(title, title, columns)
    for (name, state, system_name), measured in times.items():
        report.row(
            {
                "load": name,
                "state": state,
                "system": system_name,
                "MB/s": round(measured.bytes / 1e6 / statistics.median(measured.clock)),
                "of pass-through": per_round(times[name, state, PEER].clock, measured.clock),
                "of the file": per_round(times[name, state, "file"].clock, measured.clock),
                "daemon ms/GB": round(statistics.mean(measured.processor) * 1e12 / measured.bytes),
            }
        )
    report.end()


def states_of(load: str, states: Sequence[str]) -> list[str]:
    """Those that tell something about a load: only random reads find in the daemon what they read before."""
    return [state for state in states if state != "decoded" or load.startswith("random")]


def one_round(system: System, names: Sequence[str], state: str, load: Load, times: Times) -> None:
    """A figure more. What is warm stays so, and is done again until that has taken long enough."""
    system.prepare(names, state, load)
    processor, started, loaded = system.processor(), time.perf_counter(), 0
    while not loaded or (state == "warm" and time.perf_counter() - started < _LONG):
        done = load(system.files(names))
        loaded += 1
        if done != times.bytes:
            raise RuntimeError(f"{system.name}: {done} bytes were read, {times.bytes} the time before")
    times.clock.append((time.perf_counter() - started) / loaded)
    times.processor.append((system.processor() - processor) / loaded)


def listings(report: Report, work: Path, arguments: argparse.Namespace) -> None:
    """`ls -lR` and then `find` over folders of small archives: the first time after mounting, and again."""
    folders, files = (2, 5) if arguments.quick else (100, 100)
    plain, store = work / "many", work / "many.store"
    make_model(work / "small", 0, 0)
    if not (work / "small.brv").exists():
        pack(work / "small", work / "small.brv", "fast")
    for folder in range(folders if not store.exists() else 0):
        for root, source, suffix in ((plain, work / "small", ""), (store, work / "small.brv", ".brv")):
            target = root / f"folder{folder}"
            target.mkdir(parents=True)
            for number in range(files):
                shutil.copy(source, target / f"model{number}{suffix}")
    times: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(min(arguments.rounds, 5)):
        with (
            tempfile.TemporaryDirectory(prefix="mounts-", dir=work) as mounts,
            passing_through(plain, Path(mounts, "peer")) as (passed, _),
            brevisfs(store, Path(mounts, "brevisfs"), arguments, arguments.threads[0]) as (mounted, _),
        ):
            said = set()
            for state in ("first", "again"):
                for name, top in ((PEER, passed), ("brevisfs", mounted)):
                    started = time.perf_counter()
                    lines = loads.long_list(top)
                    between = time.perf_counter()
                    said.add((lines, loads.find(top)))
                    ended = time.perf_counter()
                    marks = {"ls -lR": (started, between), "find": (between, ended), "both": (started, ended)}
                    for command, (begin, end) in marks.items():
                        times.setdefault((name, state, command), []).append(end - begin)
            if len(said) != 1:
                raise RuntimeError(f"the listings say different numbers of lines: {sorted(said)}")
    columns = {"system": 13, "time": 6, "listing": 7, "seconds": SPREAD, "times the pass-through": SPREAD}
    report.begin("listing", f"ls -lR and find, {folders * files} archives", columns)
    for (name, state, command), taken in times.items():
        report.row(
            {
                "system": name,
                "time": state,
                "listing": command,
                "seconds": spread(taken),
                "times the pass-through": per_round(taken, times[PEER, state, command]),
            }
        )
    report.end()


def fairness(report: Report, systems: list[System], rounds: int, title: str) -> None:
    """What others wait while a model streams, and alone: for a page of an open file, and for a tiny file.

    A limit counts what takes 99 of 100 of them, alone and beside the stream.
    """
    title = f"{title}, others beside a stream, us"
    alone: dict[tuple[str, str], list[float]] = {}
    beside: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for what, (name, waits) in _WAITS.items():
            for system in systems[1:]:
                system.prepare([name], "mount cold")
                waits(system.folder / name, 50, lambda: False)
                times = waits(system.folder / name, 200, lambda: False)
                alone.setdefault((what, system.name), []).extend(times)
                stream = _Stream(system)
                times = waits(system.folder / name, 2000, stream.ended)
                beside.setdefault((what, system.name), []).extend(times)
    columns = {"of": 10, "system": 13, "count": 7}
    columns |= {f"{when} p{percent}": 11 for when in ("alone", "beside") for percent in _PERCENTS}
    report.begin(title, title, {**columns, "times": 6})
    for (what, system_name), times in beside.items():
        quiet = alone[what, system_name]
        row: dict[str, Figure] = {"of": what, "system": system_name, "count": len(times)}
        row |= {f"alone p{percent}": round(_most(quiet, percent) * 1e6) for percent in _PERCENTS}
        row |= {f"beside p{percent}": round(_most(times, percent) * 1e6) for percent in _PERCENTS}
        row["times"] = _most(times, 99) / _most(quiet, 99)
        report.row(row)
    report.end()


def _most(times: Sequence[float], percent: int) -> float:
    return sorted(times)[len(times) * percent // 100]


class _Stream:
    """The model read from the beginning to the end by a process of its own."""

    def __init__(self, system: System) -> None:
        system.prepare(["model"], "mount cold")
        command = ["dd", f"if={system.folder / 'model'}", "of=/dev/null", "bs=1M", "status=none"]
        self._process = subprocess.Popen(command)

    def ended(self) -> bool:
        return self._process.poll() is not None


def _page_waits(file: Path, count: int, ended: Callable[[], bool]) -> list[float]:
    """What reads of one page past the kernel's cache take, in seconds, now and then one."""
    descriptor = os.open(file, os.O_RDONLY)
    try:

        def drop() -> None:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        return _waits(drop, lambda: os.pread(descriptor, 4096, 0), count, ended)
    finally:
        os.close(descriptor)


def _whole_waits(file: Path, count: int, ended: Callable[[], bool]) -> list[float]:
    """As _page_waits, of opening, reading all of it and closing."""

    def read() -> None:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            while os.read(descriptor, loads.CHUNK):
                pass
        finally:
            os.close(descriptor)

    return _waits(lambda: drop_pages(file), read, count, ended)


def _waits(
    before: Callable[[], Any], read: Callable[[], Any], count: int, ended: Callable[[], bool]
) -> list[float]:
    times: list[float] = []
    chance = random.Random(count)
    while len(times) < count and not ended():
        before()
        time.sleep(chance.random() * _BETWEEN)
        started = time.perf_counter()
        read()
        times.append(time.perf_counter() - started)
    return times


_WAITS = {"page": ("shard0", _page_waits), "tiny file": (TINY, _whole_waits)}


def memory(report: Report, systems: list[System], title: str) -> None:
    title = f"{title}, the most memory of a daemon"
    report.begin(title, title, {"system": 13, "peak MB": 8})
    for system in systems[1:3]:
        report.row({"system": system.name if system.name == PEER else "brevisfs", "peak MB": system.peak()})
    report.end()


def drop_pages(path: Path) -> None:
    """Lets go of what the kernel caches of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
