"""How fast models read, all in one run so that the figures can be compared: `bench/read.py MODEL…`.

For each model, in MB (10^6 bytes) of the original a second, the median of several rounds:
    disk    the plain file, its pages dropped before
    cached  the plain file, from the page cache
    decode  its archive decoded in memory by one thread, without a mount
    mount   its archive through a fresh mount, nothing cached
    again   the same file once more, from the page cache
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from brevisfs.archive import Reader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from mounted import COMMAND, mounted

CHUNK = 1 << 20
COLUMNS = ("disk", "cached", "decode", "mount", "again")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="+", type=Path)
    parser.add_argument("--profile", default="balanced", choices=("fast", "balanced", "dense"))
    parser.add_argument("--rounds", default=3, type=int)
    arguments = parser.parse_args()
    wide = max(len(model.name) for model in arguments.models)
    print(f"{'model':<{wide}}{'stored':>9}" + "".join(f"{column:>9}" for column in COLUMNS))
    for model in arguments.models:
        with tempfile.TemporaryDirectory(prefix="brevisfs-bench-", ignore_cleanup_errors=True) as work:
            part, speeds = measure(model, Path(work), arguments.profile, arguments.rounds)
        figures = "".join(f"{statistics.median(speeds[column]):>9.0f}" for column in COLUMNS)
        print(f"{model.name:<{wide}}{part:>9.1%}{figures}", flush=True)
    return 0


def measure(model: Path, work: Path, profile: str, rounds: int) -> tuple[float, dict[str, list[float]]]:
    """The stored part of the model's size, and each column's speeds."""
    store, mountpoint = work / "store", work / "models"
    store.mkdir()
    mountpoint.mkdir()
    packed = store / f"{model.name}.brv"
    pack = [COMMAND, "pack", str(model), "-o", str(packed), "--profile", profile]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    size = model.stat().st_size
    speeds: dict[str, list[float]] = {column: [] for column in COLUMNS}

    def timed(column: str, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        speeds[column].append(size / 1e6 / (time.perf_counter() - started))

    for _ in range(rounds):
        drop_pages(model)
        timed("disk", lambda: read_all(model))
        timed("cached", lambda: read_all(model))
        timed("decode", lambda: decode_all(packed))
        with mounted(store, mountpoint):
            timed("mount", lambda: read_all(mountpoint / model.name))
            timed("again", lambda: read_all(mountpoint / model.name))
    return packed.stat().st_size / size, speeds


def drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(path: Path) -> None:
    buffer = bytearray(CHUNK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def decode_all(path: Path) -> None:
    buffer = bytearray(8 * CHUNK)
    with path.open("rb") as file:
        reader = Reader(file.fileno())
        for offset in range(0, reader.size, len(buffer)):
            reader.read_into(offset, memoryview(buffer)[: min(len(buffer), reader.size - offset)])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # what failed has said why
