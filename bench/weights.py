"""Tensors to measure with, by dtype: forms of a real model's weights, tensors of files, or made ones.

Of each dtype at most `limit` bytes are taken, the last tensor cut after whole rows.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from brevisfs.safetensors import parse, word_bits

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo import fetch

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

SMALLEST = 4096
"""Bytes of the smallest tensor that a pack gives a program of its own."""


@dataclass(frozen=True)
class Tensor:
    """`data` are the flat bytes; `dtype` is the name that safetensors has for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


Kinds = dict[str, list[Tensor]]
"""Tensors by what the report calls their kind."""

WHOLE = "BF16"
"""The form that is measured without a limit: the sizes aimed at are those of a whole model."""


def of_model(cache: Path, limit: int) -> Kinds:
    """All forms of the model that the demo fetches, kept in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    model = fetch(cache)
    weights = [tensor for tensor in _tensors(model) if tensor.dtype == "F32"]
    return forms([(t.name, t.data.view("<f4").reshape(t.shape)) for t in weights], limit, whole=True)


def of_files(files: Iterable[Path], limit: int) -> Kinds:
    """The tensors of safetensors files, by dtype."""
    kinds: Kinds = {}
    for file in files:
        for tensor in _tensors(file):
            kinds.setdefault(tensor.dtype, []).append(tensor)
    return {dtype: limited(tensors, limit) for dtype, tensors in kinds.items()}


def made(limit: int) -> Kinds:
    """All forms of weights that are no model's: normal ones whose scale differs from row to row."""
    chance = np.random.default_rng(0)
    few = 32
    rows = limit // 4 // 384 - few
    weights = chance.normal(0, 1, (rows, 384)) * np.exp2(chance.integers(-9, -4, (rows, 1)))
    return forms([("weight", weights.astype(np.float32)), ("bias", weights[:few].astype(np.float32))], limit)


def forms(weights: list[tuple[str, Array]], limit: int, whole: bool = False) -> Kinds:
    """FP32 weights in each dtype that models use, a ramp of I64 and bytes of noise."""
    kinds = {
        "BF16": _cast(weights, "BF16", lambda w: w.astype(ml_dtypes.bfloat16)),
        "FP16": _cast(weights, "F16", lambda w: w.astype(np.float16)),
        "FP32": _cast(weights, "F32", lambda w: w),
        "FP64": _cast(weights, "F64", _unit_rows),
        "FP8": _cast(weights, "F8_E4M3", lambda w: _scaled(w, 448).astype(ml_dtypes.float8_e4m3fn)),
        "INT8": _cast(weights, "I8", lambda w: np.rint(_scaled(w, 127)).astype(np.int8)),
        "I64 ramp": [_tensor("positions", "I64", np.arange(limit // 8, dtype="<i8"))],
        "U8 noise": [_tensor("noise", "U8", np.random.default_rng(1).integers(0, 256, limit, np.uint8))],
    }
    return {
        kind: tensors if whole and kind == WHOLE else limited(tensors, limit)
        for kind, tensors in kinds.items()
    }


def as_file(tensors: list[Tensor]) -> bytes:
    """A safetensors file of the tensors."""
    entries, position = [], 0
    for tensor in tensors:
        end = position + len(tensor.data)
        shape = ",".join(map(str, tensor.shape))
        entries.append(
            f'"{tensor.name}":{{"dtype":"{tensor.dtype}","shape":[{shape}],"data_offsets":[{position},{end}]}}'
        )
        position = end
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + b"".join(t.data.tobytes() for t in tensors)


def element_bits(tensor: Tensor) -> int:
    """Bits of one number; a dtype not known is bytes."""
    return word_bits(tensor.dtype) or 8


def _cast(weights: list[tuple[str, Array]], dtype: str, function: Any) -> list[Tensor]:
    return [_tensor(name, dtype, function(array)) for name, array in weights]


def _unit_rows(weights: Array) -> Array:
    # Upcast weights would have zeros for low bits, which doubles that were computed have not.
    rows = weights.astype(np.float64)
    unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)
    return unit


def _scaled(weights: Array, most: int) -> Array:
    return weights * np.float32(most / max(float(np.abs(weights).max(initial=0)), 1e-30))


def _tensor(name: str, dtype: str, array: Array) -> Tensor:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Tensor(name, dtype, array.shape, flat)


def _tensors(file: Path) -> Iterator[Tensor]:
    data = file.read_bytes()
    for entry in parse(len(data), lambda offset, length: data[offset : offset + length]).tensors:
        part = np.frombuffer(data, np.uint8)[entry.begin : entry.end]
        yield Tensor(entry.name, entry.dtype, entry.shape, part)


def limited(tensors: list[Tensor], limit: int) -> list[Tensor]:
    """The first `limit` bytes of tensors, without those that are too small for a program of their own."""
    taken = []
    for tensor in tensors:
        size = len(tensor.data)
        if size > limit:
            row = size // tensor.shape[0] if tensor.shape else size
            rows = limit // row
            tensor = Tensor(tensor.name, tensor.dtype, (rows, *tensor.shape[1:]), tensor.data[: rows * row])
            size = rows * row
        if size >= SMALLEST:
            taken.append(tensor)
            limit -= size
    return taken
