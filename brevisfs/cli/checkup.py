"""brevisfs checkup: what a model's words reveal about its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from brevisfs import archive, safetensors, synth
from brevisfs.cli._console import columns, percent, say, size
from brevisfs.cli._files import Batch, Item, as_path, find, opened

MANY = 3
"""More findings of one text than this are told in one line."""

Read = Callable[[int, int], bytes]
"""Bytes of a model from an offset on, so many."""


@dataclass(frozen=True)
class Finding:
    """Something remarkable about one or more tensors: a kind for programs and a line for people."""

    tensors: list[str]
    kind: str
    text: str


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """Tell what models, plain or archived, reveal about their weights.

    That is: tensors stored twice, rows that are dead or repeat others, bits that never change, values that
    a narrower dtype would hold as well, zeros, and values at the end of what their dtype can hold.
    """
    batch = Batch()
    results = []

    def work(item: Item) -> None:
        with _model(item.path) as (nbytes, read):
            tensors = safetensors.parse(nbytes, read).tensors
            findings = list(_findings(tensors, read))
        results.append({"file": str(item.path), "findings": [asdict(finding) for finding in findings]})
        if not as_json:
            say(f"{item.path}: {len(tensors)} tensors, {size(nbytes)}")
            for line in _lines(findings):
                say(f"  {line}")

    for item in find(files, batch.lost):
        batch.step(item, work)
    if as_json:
        say(json.dumps(results))
    return batch.code


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding; what many tensors have in common is one line."""
    by_text: dict[str, list[Finding]] = {}
    for finding in findings:
        by_text.setdefault(finding.text, []).append(finding)
    rows = []
    for text, alike in by_text.items():
        if len(alike) > MANY and alike[0].kind != "tied":
            rows.append((f"{alike[0].tensors[0]} and {len(alike) - 1} others", text))
        else:
            rows += [(", ".join(finding.tensors), text) for finding in alike]
    yield from columns(rows) if rows else ["nothing remarkable"]


@contextmanager
def _model(path: Path) -> Iterator[tuple[int, Read]]:
    """Length and bytes of a model, which may be an archive."""
    with opened(path) as fd:
        if not archive.is_archive(fd):
            yield os.fstat(fd).st_size, lambda offset, length: os.pread(fd, length, offset)
            return
        reader = archive.Reader(fd)

        def read(offset: int, length: int) -> bytes:
            data = np.empty(length, np.uint8)
            reader.read_into(offset, data)
            return data.tobytes()

        yield reader.size, read


class _Tensor:
    def __init__(self, tensor: safetensors.Tensor, read: Read) -> None:
        self._begin, self._read = tensor.begin, read
        self.nbytes = tensor.end - tensor.begin

    def read(self, lo: int, hi: int) -> bytes:
        return self._read(self._begin + lo, hi - lo)


def _findings(tensors: Sequence[safetensors.Tensor], read: Read) -> Iterator[Finding]:
    alike: dict[tuple[int, int], list[safetensors.Tensor]] = {}
    for tensor in tensors:
        if tensor.begin < tensor.end:
            traits = synth.examine(_Tensor(tensor, read), tensor.dtype, tensor.shape)
            for kind, text in _remarks(tensor, traits):
                yield Finding([tensor.name], kind, text)
            if traits.varying:
                alike.setdefault((traits.digest, tensor.end - tensor.begin), []).append(tensor)
    for (_, nbytes), group in alike.items():
        if len(group) > 1:
            yield Finding([tensor.name for tensor in group], "tied", f"the same {size(nbytes)}")


def _remarks(tensor: safetensors.Tensor, traits: synth.Traits) -> Iterator[tuple[str, str]]:
    if not traits.varying:
        if traits.words > 1:
            yield "constant", "all values are the same"
        return
    if traits.constant_rows:
        yield "dead rows", f"{traits.constant_rows} of {traits.rows} rows hold one value only"
    if traits.repeated_rows:
        yield "repeated rows", f"{traits.repeated_rows} of {traits.rows} rows are equal to an earlier one"
    if traits.narrower:
        yield "precision", f"every value would fit in {traits.narrower}"
    elif low := _constant_low_bits(tensor.dtype, traits.varying):
        yield "precision", f"the low {low} mantissa bits never change"
    if traits.distinct is not None and traits.distinct <= traits.words // 16 and traits.narrower is None:
        yield "few values", f"{traits.distinct} different values"
    if traits.zeros >= synth.SPARSE * traits.words:
        yield "sparse", f"{percent(traits.zeros, traits.words)} of the values are zero"
    if traits.special:
        yield "not finite", f"{traits.special} infinities or NaNs"
    if traits.largest:
        yield "saturated", f"{traits.largest} values at the end of what {tensor.dtype} holds"


def _constant_low_bits(dtype: str, varying: int) -> int:
    """How many of the low mantissa bits of a float are the same in all words."""
    layout = synth.FLOATS.get(dtype)
    low = (varying & -varying).bit_length() - 1
    return 0 if layout is None else min(low, layout.mantissa)
