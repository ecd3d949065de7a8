"""Every .safetensors file of a folder, packed, mounted and compared with itself: `make corpus-check DIR=…`.

Through the mount each file must have its size and SHA-256, answer 8 readers at random offsets at once
with the right bytes, and give safetensors (numpy, and torch where it is installed) the same tensors and
slices as the original.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # makes numpy know bfloat16
import numpy as np
import safetensors
from mounted import COMMAND, mounted
from safetensors.numpy import load_file

READERS = 8
READS = 100
LONGEST_READ = 1 << 20
SLICES = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", default="balanced", choices=("fast", "balanced", "dense"))
    parser.add_argument("--targets", type=Path, help='sizes to compare with: {"file": {"peer_bytes": …}}')
    parser.add_argument("--work", type=Path, help="folder for the store  [default: the system's]")
    arguments = parser.parse_args()
    models = sorted(arguments.folder.rglob("*.safetensors"))
    if not models:
        print(f"corpus-check: no .safetensors file in {arguments.folder}", file=sys.stderr)
        return 3
    targets = json.loads(arguments.targets.read_text()) if arguments.targets else {}
    with tempfile.TemporaryDirectory(
        prefix="brevisfs-corpus-", dir=arguments.work, ignore_cleanup_errors=True
    ) as work:
        return check_all(arguments.folder, models, Path(work), arguments.profile, targets)


def check_all(folder: Path, models: list[Path], work: Path, profile: str, targets: dict[str, Any]) -> int:
    """Packs and mounts, then prints a line a file; 0 if all are equal, else 1."""
    store, mountpoint = work / "store", work / "models"
    store.mkdir()
    mountpoint.mkdir()
    pack = [COMMAND, "pack", str(folder), "-o", str(store), "--profile", profile, "--json"]
    report = json.loads(subprocess.run(pack, check=True, stdout=subprocess.PIPE).stdout)
    stored = {item["source"]: item["stored"] for item in report["packed"]}
    wide = max(len(str(model.relative_to(folder))) for model in models)
    print(f"{'file':<{wide}}{'raw':>14}{'stored':>14}{'%':>8}{'vs peer':>9}  ok")
    wrong = 0
    with mounted(store, mountpoint):
        for model in models:
            name = str(model.relative_to(folder))
            size, kept = model.stat().st_size, stored[str(model)]
            failures = check(model, mountpoint / name)
            wrong += bool(failures)
            peer = targets.get(name, {}).get("peer_bytes")
            against = f"{kept / peer - 1:+.2%}" if peer else ""
            verdict = "yes" if not failures else "NO: " + ", ".join(failures)
            sizes = f"{size:>14,}{kept:>14,}{kept / size:>8.2%}{against:>9}"
            print(f"{name:<{wide}}{sizes}  {verdict}", flush=True)
    return int(wrong > 0)


def check(original: Path, seen: Path) -> list[str]:
    """The names of the checks that fail. Each starts without what the kernel has cached of the file."""
    checks: list[Callable[[Path, Path], bool]] = [
        same_size,
        same_random_reads,
        same_sha256,
        same_tensors,
        same_loaded,
        same_slices,
    ]
    if importlib.util.find_spec("torch"):
        checks.append(same_in_torch)
    failures = []
    for one in checks:
        drop_pages(seen)
        try:
            equal = one(original, seen)
        except Exception as error:
            failures.append(f"{one.__name__} ({type(error).__name__}: {error})")
            continue
        if not equal:
            failures.append(one.__name__)
    return failures


def drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def same_size(original: Path, seen: Path) -> bool:
    return original.stat().st_size == seen.stat().st_size


def same_sha256(original: Path, seen: Path) -> bool:
    return digest(original) == digest(seen)


def digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def same_random_reads(original: Path, seen: Path) -> bool:
    size = original.stat().st_size
    with original.open("rb") as left, seen.open("rb") as right, ThreadPoolExecutor(READERS) as readers:

        def read(seed: int) -> bool:
            chance = random.Random(seed)
            for _ in range(READS):
                offset, length = chance.randrange(size), chance.randint(1, LONGEST_READ)
                if os.pread(left.fileno(), length, offset) != os.pread(right.fileno(), length, offset):
                    return False
            return True

        return all(readers.map(read, range(READERS)))


def same_tensors(original: Path, seen: Path) -> bool:
    """As raw bytes, since numpy cannot hold every dtype."""
    deserialize: Any = safetensors.deserialize
    return dict(deserialize(original.read_bytes())) == dict(deserialize(seen.read_bytes()))


def same_loaded(original: Path, seen: Path) -> bool:
    if not numpy_can_hold(original):
        return True
    left, right = load_file(original), load_file(seen)
    return left.keys() == right.keys() and all(same_array(left[name], right[name]) for name in left)


def same_slices(original: Path, seen: Path) -> bool:
    with safetensors.safe_open(original, "np") as left, safetensors.safe_open(seen, "np") as right:
        if list(left.keys()) != list(right.keys()) or left.metadata() != right.metadata():
            return False
        if not numpy_can_hold(original):
            return True
        names = left.keys()
        return all(same_parts(left.get_slice(name), right.get_slice(name), name) for name in names)


def same_parts(left: Any, right: Any, seed: str) -> bool:
    shape = left.get_shape()
    if shape != right.get_shape() or left.get_dtype() != right.get_dtype():
        return False
    if not shape or 0 in shape:
        return True
    chance = random.Random(seed)
    for _ in range(SLICES):
        lo = chance.randrange(shape[0])
        hi = chance.randint(lo + 1, shape[0])
        if not same_array(left[lo:hi], right[lo:hi]):
            return False
    return True


def numpy_can_hold(path: Path) -> bool:
    """Whether safetensors can give every tensor as a numpy array: not the FP8 kinds."""
    with safetensors.safe_open(path, "np") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return not any(dtype.startswith(("F8", "F6", "F4")) for dtype in dtypes)


def same_array(left: Any, right: Any) -> bool:
    return bool(left.dtype == right.dtype and np.array_equal(raw(left), raw(right)))


def raw(array: Any) -> Any:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def same_in_torch(original: Path, seen: Path) -> bool:
    import torch
    from safetensors.torch import load_file as load_torch

    left, right = load_torch(original), load_torch(seen)
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and torch.equal(left[name].reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))
        for name in left
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # what failed has said why
