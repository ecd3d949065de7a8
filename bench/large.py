"""Memory of a pack: `make test-large` packs a sparse file of 20 GB and fails if that took more than 1 GiB.

The file has one tensor of 8 GB and others of 4 GB, with a MiB of weights at every 64 MiB and nothing
between, so that all of it is searched, encoded and verified, and little is stored.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from mounted import COMMAND

LIMIT = 1 << 30
COLUMNS = 4096
PIECE, STRIDE = 1 << 20, 64 << 20


@dataclass(frozen=True)
class Result:
    """Bytes of the file, of its archive and of the most memory the pack had at a time; seconds it took."""

    original: int
    stored: int
    peak: int
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make test-large", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=20, help="of the file; its first tensor has 40 %%")
    parser.add_argument("--profile", default="balanced", choices=("fast", "balanced", "dense"))
    parser.add_argument("--work", type=Path, help="where file and archive are made")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="brevisfs-large-", dir=options.work) as work:
        model = Path(work) / "large.safetensors"
        make(model, sizes(int(options.gigabytes * 1e9)))
        result = pack(model, options.profile)
    print(
        f"{result.original:,} bytes packed into {result.stored:,} in {result.seconds:.0f} s, "
        f"peak resident memory {result.peak / 2**20:.0f} MiB of {LIMIT / 2**20:.0f} allowed"
    )
    return int(result.peak > LIMIT)


def sizes(total: int) -> Iterator[int]:
    """Bytes of the tensors: one of 40 % of the total, then such of 20 %; all whole rows."""
    row = 2 * COLUMNS
    for share in (4, 2, 2, 2):
        yield total * share // 10 // row * row


def make(path: Path, tensors: Iterator[int]) -> None:
    """Writes the sparse file, BF16 throughout."""
    entries, position = [], 0
    for index, size in enumerate(tensors):
        shape = f"[{size // 2 // COLUMNS},{COLUMNS}]"
        offsets = f"[{position},{position + size}]"
        entries.append(f'"layer.{index}.weight":{{"dtype":"BF16","shape":{shape},"data_offsets":{offsets}}}')
        position += size
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    start = 8 + len(header)
    weights = np.random.default_rng(0).normal(0, 0.02, PIECE // 2).astype(ml_dtypes.bfloat16).tobytes()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(start + position)
        for at in range(0, position - PIECE, STRIDE):
            os.pwrite(file.fileno(), weights, start + at)


def pack(model: Path, profile: str) -> Result:
    """Packs with the command, which verifies what it wrote. Raises CalledProcessError if it fails."""
    target = model.with_suffix(".brv")
    command = [COMMAND, "pack", str(model), "-o", str(target), "--profile", profile]
    started, peak = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, _high_water(process.pid))
            time.sleep(0.02)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.monotonic() - started
    return Result(model.stat().st_size, target.stat().st_size, peak, seconds)


def _high_water(process: int) -> int:
    """The most resident memory so far, in bytes; 0 once it has ended.

    What wait4 tells of a child counts the process that started it, from before the program was replaced.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # what failed has said why
