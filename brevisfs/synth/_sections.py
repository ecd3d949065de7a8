"""How a safetensors file is cut into sections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from brevisfs.archive import Kind
from brevisfs.safetensors import Layout, Tensor

SMALL_BYTES = 4096
"""Tensors below this share a section with small neighbours: one of its own would cost them dear."""

HEADER_BLOCK = 1 << 18
"""Words a block of the header, which compresses better the more of it lies together."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One section to be: its bytes begin at `offset` of the file; `block` is None for the usual size."""

    kind: Kind
    dtype: str | None
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    block: int | None = None


def sections(layout: Layout) -> Iterator[Cut]:
    """The sections of a file in order: the header, then tensors and groups of small ones."""
    yield Cut(Kind.HEADER, None, (), 0, layout.header_length, HEADER_BLOCK)
    filled = (tensor for tensor in layout.tensors if tensor.end > tensor.begin)
    for small, neighbours in groupby(filled, key=lambda tensor: tensor.end - tensor.begin < SMALL_BYTES):
        run = list(neighbours)
        if small and len(run) > 1:
            yield _group(run)
        else:
            for tensor in run:
                length = tensor.end - tensor.begin
                yield Cut(Kind.TENSOR, tensor.dtype, tensor.shape, tensor.begin, length)


def _group(run: list[Tensor]) -> Cut:
    dtypes = {tensor.dtype for tensor in run}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    begin, end = run[0].begin, run[-1].end
    return Cut(Kind.GROUP, dtype, (), begin, end - begin)
