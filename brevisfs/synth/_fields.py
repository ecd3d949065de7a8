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
from numpy.typing import NDArray

from brevisfs.dsl import Const, Lit, Merge, Node, Raw, Sparse, Zstd
from brevisfs.synth import _literal, _times
from brevisfs.synth._costs import Histogram
from brevisfs.synth._literal import NODE_BYTES, SYMBOL_BITS, Choice, Extent, better
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import CHUNK, Sample, Words

WINDOW = 16
"""Bits of a joint histogram."""

FEW_WORDS = 1 << 14

JOINED_BITS = (16, 32)
MOST_TOP = 3
"""Bits of the words that one pass decodes, and of what may stand above the 8-bit symbol there."""

ZSTD_BLOCK_BYTES = 24
"""What a zstd frame costs whatever it holds."""


Ranks = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Field:
    """Bits `low` to `low + width` of each word, counted from the least significant."""

    low: int
    width: int

    @property
    def high(self) -> int:
        """The bit above the field."""
        return self.low + self.width

    @property
    def mask(self) -> int:
        """The field's bits set."""
        return ((1 << self.width) - 1) << self.low


def split(sample: Sample, settings: Settings) -> Choice:
    """The best literal, Const or Merge of such for the sample's stream.

    Coded fields enter the path search with a bound below what they can cost; those on the best path
    are priced and the search goes on until all of a best path is priced. The cuts that decode in one
    pass are tried beside it: what they save is no field's alone.
    """
    prices = _Prices(sample, settings)
    while True:
        path = _shortest(sample.bits, prices.ranks)
        settled = [prices.settle(field) for field in path]
        if all(settled):
            break
    best = prices.merged(path)
    for joined in _joined(sample.bits):
        if prices.least(joined) < best.rank:
            for field in joined:
                prices.settle(field)
            best = better(best, prices.merged(joined))
    return best


def _joined(bits: int) -> list[list[Field]]:
    """The cuts that may be joined, from the most significant field down."""
    if bits not in JOINED_BITS:
        return []
    plain = [Field(bits - SYMBOL_BITS, SYMBOL_BITS), Field(0, bits - SYMBOL_BITS)]
    topped = (
        [Field(bits - top, top), Field(rest, SYMBOL_BITS), Field(0, rest)]
        for top in range(1, MOST_TOP + 1)
        if (rest := bits - top - SYMBOL_BITS)
    )
    return [plain, *topped]


def is_joined(parts: list[tuple[Field, Node]], bits: int) -> bool:
    """Whether one pass decodes a Merge of such fields: a top that hardly varies, a symbol, raw bits."""
    nodes = [node for _, node in parts]
    return (
        [field for field, _ in parts] in _joined(bits)
        and nodes[-1] == Lit(Raw())
        and (
            len(nodes) == 2
            or isinstance(nodes[0], Const)
            or (isinstance(nodes[0], Lit) and isinstance(nodes[0].encoding, Sparse))
        )
    )


def _shortest(bits: int, ranks: Ranks) -> list[Field]:
    """The cut of a word with the lowest sum of ranks, the most significant field first."""
    totals, lows = np.zeros(bits + 1), [0]
    for high in range(1, bits + 1):
        sums = totals[:high] + ranks[:high, high]
        lows.append(int(np.argmin(sums)))
        totals[high] = sums[lows[high]]
    path, high = [], bits
    while high:
        path.append(Field(lows[high], high - lows[high]))
        high = lows[high]
    return path


def merged(parts: list[tuple[Field, Choice]], extent: Extent, settings: Settings) -> Choice:
    """The Merge of fields given from the most significant one down, or the only field itself."""
    if len(parts) == 1:
        return parts[0][1]
    node = Merge(tuple(field.width for field, _ in parts), tuple(choice.node for _, choice in parts))
    size = NODE_BYTES + sum(choice.size for _, choice in parts)
    joined = is_joined([(field, choice.node) for field, choice in parts], sum(node.widths))
    time = _times.JOINED if joined else _times.FIELD * len(parts)
    toll = settings.toll * extent.count * time / 8
    return Choice(node, size, toll + sum(choice.toll for _, choice in parts))


def fields_of(node: Node, bits: int) -> Iterator[tuple[Field, Node]]:
    """The fields of a program made by `merged`, from the most significant one down."""
    if not isinstance(node, Merge):
        yield Field(0, bits), node
        return
    for width, child in zip(node.widths, node.children, strict=True):
        bits -= width
        yield Field(bits, width), child


class _Prices:
    """What each field of a word costs: exactly for those in `choices`, at least for the others.

    `ranks[low, high]` are the sizes with tolls that the path search adds up.
    """

    def __init__(self, sample: Sample, settings: Settings) -> None:
        self._sample, self._settings = sample, settings
        self._extent = Extent(sample.count, sample.block)
        self._toll = settings.toll * sample.count * _times.FIELD / 8
        self._stillness = _stillness(sample)
        self._hists: dict[Field, Histogram] = {}
        self.choices: dict[Field, Choice] = {}
        self.ranks: Ranks = np.full((sample.bits, sample.bits + 1), np.inf)
        for low in range(sample.bits):
            for high in range(low + 1, sample.bits + 1):
                self.ranks[low, high] = self._toll + self._plain(Field(low, high - low)).rank
        for low, hists in coded_fields(sample):
            bounds = _literal.least(hists, self._extent, settings)
            for width, hist, bound in zip(range(len(hists), 0, -1), hists, bounds, strict=True):
                field = Field(low, width)
                if field.mask & sample.varying and self._toll + bound < self.ranks[low, field.high]:
                    self._hists[field] = hist
                    self.ranks[low, field.high] = self._toll + bound

    def settle(self, field: Field) -> bool:
        """Prices a field; False if that changed its rank."""
        if field in self.choices:
            return True
        choice = self._plain(field)
        hist = self._hists.get(field)
        if hist is not None:
            choice = better(choice, _literal.complete(hist, field.width, self._extent, self._settings))
        self.choices[field] = choice
        bound, rank = self.ranks[field.low, field.high], self._toll + choice.rank
        self.ranks[field.low, field.high] = rank
        return bool(bound == rank)

    def merged(self, path: list[Field]) -> Choice:
        """The Merge of fields that are priced."""
        parts = [(field, self.choices[field]) for field in path]
        return merged(parts, self._extent, self._settings)

    def least(self, path: list[Field]) -> float:
        """A rank that no joined Merge of the fields goes below."""
        return float(sum(self.ranks[field.low, field.high] - self._toll for field in path))

    def _plain(self, field: Field) -> Choice:
        """Const, raw or zstd."""
        if not field.mask & self._sample.varying:
            return _literal.constant((int(self._sample.words[0]) & field.mask) >> field.low)
        choice = _literal.raw(field.width, self._extent)
        if self._stillness:
            choice = better(choice, self._runs(field))
        return choice

    def _runs(self, field: Field) -> Choice:
        """zstd, for a field that does not change for whole chunks: those cost next to nothing."""
        changing = sum(share for varying, share in self._stillness if varying & field.mask)
        plain = self._extent.count * field.width / 8
        still = plain * (1 - changing) / (4 * CHUNK)
        size = NODE_BYTES + plain * changing + still + self._extent.blocks * ZSTD_BLOCK_BYTES
        return Choice(Lit(Zstd()), size, self._settings.toll * plain * _times.ZSTD_BYTE / 8)


def _stillness(sample: Sample) -> list[tuple[int, float]]:
    """The sets of bits that vary in a chunk, and the share of chunks with each; [] if all vary alike."""
    sets, counts = np.unique(sample.chunks, return_counts=True)
    if len(sets) < 2:
        return []
    shares = counts / len(sample.chunks)
    return list(zip(sets.tolist(), shares.tolist(), strict=True))


def coded_fields(sample: Sample) -> Iterator[tuple[int, list[Histogram]]]:
    """For each lowest bit, the histograms of the fields narrow enough to be coded, the widest first."""
    # A window is counted once for several fields, which pays where words are many against its bins.
    step = WINDOW - SYMBOL_BITS if len(sample.words) > FEW_WORDS else 1
    window = min(SYMBOL_BITS + step, sample.bits)
    counted: dict[int, Histogram] = {}
    for low in range(sample.bits):
        base = min(low // step * step, sample.bits - window)
        if base not in counted:
            counted[base] = count(sample.words, base, window)
        width = min(SYMBOL_BITS, sample.bits - low)
        folded = counted[base].reshape(-1, 1 << (low - base)).sum(axis=1)
        hists = []
        for narrower in range(width, 0, -1):
            folded = folded.reshape(-1, 1 << narrower).sum(axis=0)
            hists.append(folded)
        yield low, hists


def count(words: Words, low: int, width: int) -> Histogram:
    """How often each value of the field occurs."""
    kind = words.dtype.type
    values = (words >> kind(low)) & kind((1 << width) - 1)
    return np.bincount(values.astype(np.intp), minlength=1 << width)
