"""Where to cut words into fields: the best Merge of literals for a stream.

Every cut of a word into neighbouring fields is considered: exponents with any number of leading
mantissa bits, byte planes, bit planes, low bits that are zero, rarely set high bits are all cuts.
The cost of a field does not depend on the others', so the best cut is a shortest path over bit
positions, and the cost of every field follows from a few joint histograms: windows of 16 bits, so
placed that each field narrow enough to be coded lies in one of them. A field's histogram is a
window's, folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from brevisfs.dsl import Lit, Merge, Node, Zstd
from brevisfs.synth import _literal
from brevisfs.synth._costs import Histogram
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent, better
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import CHUNK, Sample, Words

WINDOW = 16
"""Bits of a joint histogram."""


@dataclass(frozen=True, slots=True)
class Field:
    """Bits `low` to `low + width` of each word, counted from the least significant."""

    low: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits set."""
        return ((1 << self.width) - 1) << self.low


def split(sample: Sample, settings: Settings) -> Choice:
    """The best literal, Const or Merge of such for the sample's stream."""
    choices = _field_choices(sample, settings)
    best: list[tuple[float, list[tuple[Field, Choice]]]] = [(0.0, [])]
    for high in range(1, sample.bits + 1):
        paths = ((best[low][0] + choices[low, high - low].rank, low) for low in range(high))
        rank, low = min(paths)
        width = high - low
        best.append((rank, [(Field(low, width), choices[low, width]), *best[low][1]]))
    return merged(best[-1][1])


def merged(parts: list[tuple[Field, Choice]]) -> Choice:
    """The Merge of fields given from the most significant one down, or the only field itself."""
    if len(parts) == 1:
        return parts[0][1]
    node = Merge(tuple(field.width for field, _ in parts), tuple(choice.node for _, choice in parts))
    size = NODE_BYTES + sum(choice.size for _, choice in parts)
    return Choice(node, size, sum(choice.toll for _, choice in parts))


def fields_of(node: Node, bits: int) -> Iterator[tuple[Field, Node]]:
    """The fields of a program made by `merged`, from the most significant one down."""
    if not isinstance(node, Merge):
        yield Field(0, bits), node
        return
    for width, child in zip(node.widths, node.children, strict=True):
        bits -= width
        yield Field(bits, width), child


def _field_choices(sample: Sample, settings: Settings) -> dict[tuple[int, int], Choice]:
    """The best completion of each field, by low bit and width."""
    extent = Extent(sample.count, sample.block)
    choices = _plain_choices(sample, extent, settings)
    for field, hist in coded_fields(sample, settings.symbol_bits):
        key = (field.low, field.width)
        if field.mask & sample.varying:
            choices[key] = better(choices[key], _literal.complete(hist, field.width, extent, settings))
    return choices


def _plain_choices(sample: Sample, extent: Extent, settings: Settings) -> dict[tuple[int, int], Choice]:
    """Raw, Const or zstd for each field."""
    choices: dict[tuple[int, int], Choice] = {}
    first = int(sample.words[0])
    chunks = sample.chunks
    still = bool(len(chunks)) and bool(np.any(chunks != sample.varying))
    for low in range(sample.bits):
        for width in range(1, sample.bits - low + 1):
            field = Field(low, width)
            if not field.mask & sample.varying:
                choices[low, width] = _literal.constant((first & field.mask) >> low)
                continue
            choices[low, width] = _literal.raw(width, extent)
            if still:
                choices[low, width] = better(choices[low, width], _runs(field, sample, extent, settings))
    return choices


def _runs(field: Field, sample: Sample, extent: Extent, settings: Settings) -> Choice:
    """zstd, for a field that does not change for whole chunks: those cost next to nothing."""
    chunks = sample.chunks
    changing = np.count_nonzero(chunks & chunks.dtype.type(field.mask)) / len(chunks)
    plain = extent.count * field.width / 8
    size = NODE_BYTES + plain * changing + extent.blocks * 24 + plain * (1 - changing) / (4 * CHUNK)
    return Choice(Lit(Zstd()), size, settings.toll * plain * _literal.ZSTD_NS_PER_BYTE / 8)


def coded_fields(sample: Sample, widest: int) -> Iterator[tuple[Field, Histogram]]:
    """Each field of `widest` bits at most, with its histogram."""
    window = min(WINDOW, sample.bits)
    step = max(1, WINDOW - widest)
    counted: dict[int, Histogram] = {}
    for low in range(sample.bits):
        base = min(low // step * step, sample.bits - window)
        if base not in counted:
            counted[base] = count(sample.words, base, window)
        width = min(widest, sample.bits - low)
        folded = counted[base].reshape(-1, 1 << (low - base)).sum(axis=1)
        for narrower in range(width, 0, -1):
            folded = folded.reshape(-1, 1 << narrower).sum(axis=0)
            yield Field(low, narrower), folded


def count(words: Words, low: int, width: int) -> Histogram:
    """How often each value of the field occurs."""
    kind = words.dtype.type
    values = (words >> kind(low)) & kind((1 << width) - 1)
    return np.bincount(values.astype(np.intp), minlength=1 << width)
