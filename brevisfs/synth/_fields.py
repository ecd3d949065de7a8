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
from typing import TypeVar

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

MOST_CHUNKS = 1 << 12

ZSTD_BLOCK_BYTES = 24
"""What a zstd frame costs whatever it holds."""


Ranks = NDArray[np.float64]
Sizes = TypeVar("Sizes", float, NDArray[np.float64])


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
        self._changing = _changing(sample)
        self._hists: dict[Field, Histogram] = {}
        self.choices: dict[Field, Choice] = {}
        self.ranks = self._toll + self._plain_ranks()
        coded = [(field, hist) for field, hist in coded_fields(sample) if field.mask & sample.varying]
        if coded:
            bounds = self._toll + _literal.least([hist for _, hist in coded], self._extent, settings)
            for (field, hist), bound in zip(coded, bounds.tolist(), strict=True):
                if bound < self.ranks[field.low, field.high]:
                    self._hists[field] = hist
                    self.ranks[field.low, field.high] = bound

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

    def _plain_ranks(self) -> Ranks:
        """What `_plain` comes to for every field."""
        low, high = np.ogrid[: self._sample.bits, : self._sample.bits + 1]
        sizes = self._extent.count * np.maximum(high - low, 0) / 8
        ranks: Ranks = NODE_BYTES + sizes
        if len(self._changing):
            ranks = np.minimum(ranks, self._runs_bytes(sizes, self._changing) + self._runs_toll(sizes))
        varying = np.array([self._sample.varying], np.uint64)
        ranks[_holding(varying, np.ones(1, np.intp), self._sample.bits) == 0] = NODE_BYTES
        ranks[high <= low] = np.inf
        return ranks

    def _plain(self, field: Field) -> Choice:
        """Const, raw or zstd."""
        if not field.mask & self._sample.varying:
            return _literal.constant((int(self._sample.words[0]) & field.mask) >> field.low)
        choice = _literal.raw(field.width, self._extent)
        if len(self._changing):
            size = self._extent.count * field.width / 8
            changing = float(self._changing[field.low, field.high])
            runs = Choice(Lit(Zstd()), self._runs_bytes(size, changing), self._runs_toll(size))
            choice = better(choice, runs)
        return choice

    def _runs_bytes(self, size: Sizes, changing: Sizes) -> Sizes:
        """zstd, for fields of `size` bytes that change in a part of the chunks: the others are cheap."""
        still = size * (1 - changing) / (4 * CHUNK)
        return NODE_BYTES + size * changing + still + self._extent.blocks * ZSTD_BLOCK_BYTES

    def _runs_toll(self, size: Sizes) -> Sizes:
        return size * (self._settings.toll * _times.ZSTD_BYTE / 8)


def _changing(sample: Sample) -> Ranks:
    """The share of chunks in which some bit from `low` to `high` varies; empty if all vary alike."""
    chunks = sample.chunks[:: -(-len(sample.chunks) // MOST_CHUNKS) or 1]
    sets, counts = np.unique(chunks, return_counts=True)
    return _holding(sets, counts, sample.bits) / len(chunks) if len(sets) > 1 else np.empty(0)


def _holding(sets: Words, counts: NDArray[np.intp], bits: int) -> NDArray[np.intp]:
    """By low and high, how many of the sets of bits, each counted, have one from `low` to `high`."""
    places = (sets.astype(np.uint64)[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    below = np.zeros((len(sets), bits + 1), np.int8)
    np.cumsum(places, axis=1, out=below[:, 1:])
    return np.stack([counts @ (below > below[:, low : low + 1]) for low in range(bits)])


def coded_fields(sample: Sample) -> Iterator[tuple[Field, Histogram]]:
    """Each field narrow enough to be coded, with its histogram."""
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
        for narrower in range(width, 0, -1):
            folded = folded.reshape(-1, 1 << narrower).sum(axis=0)
            yield Field(low, narrower), folded


def count(words: Words, low: int, width: int) -> Histogram:
    """How often each value of the field occurs."""
    kind = words.dtype.type
    values = (words >> kind(low)) & kind((1 << width) - 1)
    return np.bincount(values.astype(np.intp), minlength=1 << width)
