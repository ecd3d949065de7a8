"""What packing a model would save, without packing it."""

import os
from collections.abc import Sequence
from math import prod

from brevisfs import safetensors, synth

_TENSORS = 3
_BYTES = 8 << 20


def estimate(file: int, profile: synth.Profile) -> int:
    """About how many bytes an open safetensors file would take, from parts of some tensors of each dtype.

    Raises NotSafetensors, OSError.
    """
    size = os.fstat(file).st_size
    layout = safetensors.parse(size, lambda offset, length: os.pread(file, length, offset))
    by_dtype: dict[str, list[safetensors.Tensor]] = {}
    for tensor in layout.tensors:
        if tensor.end > tensor.begin:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    total = float(layout.header_length)
    for tensors in by_dtype.values():
        nbytes = sum(tensor.end - tensor.begin for tensor in tensors)
        total += nbytes * _share(file, _spread(tensors), profile)
    return round(total)


def _spread(tensors: Sequence[safetensors.Tensor]) -> list[safetensors.Tensor]:
    """The largest, which decide, and not all from the same end of the file."""
    largest = sorted(tensors, key=lambda tensor: tensor.begin - tensor.end)[: 4 * _TENSORS]
    largest.sort(key=lambda tensor: tensor.begin)
    step = max(1, len(largest) // _TENSORS)
    return largest[step // 2 :: step][:_TENSORS]


def _share(file: int, tensors: Sequence[safetensors.Tensor], profile: synth.Profile) -> float:
    """What part of their bytes the tensors would take; of large ones the first rows are looked at."""
    stored = nbytes = 0
    for tensor in tensors:
        rows = tensor.shape[0] if tensor.shape else 1
        row = (tensor.end - tensor.begin) // rows
        taken = min(rows, max(1, _BYTES // max(1, row)))
        data = os.pread(file, taken * row, tensor.begin)
        shape = (taken, *tensor.shape[1:]) if prod(tensor.shape) else ()
        plan = synth.synthesize(synth.Memory(data), tensor.dtype, shape, profile)
        stored += min(plan.candidates[0].size, len(data))
        nbytes += len(data)
    return stored / nbytes
