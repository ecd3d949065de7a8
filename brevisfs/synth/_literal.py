"""Literal completion: the cheapest encoding of a hole's words, from their histogram.

A `Choice` has the bytes its node will take, program and shared parts included, and the toll its
decoding pays under the profile. Holes whose words have no histogram are completed as raw or, in
`_fields`, as zstd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from brevisfs.dsl import Const, Huffman, Lit, Node, Pack, Rans, Raw, Sparse, Transpose, Tunstall
from brevisfs.synth import _times
from brevisfs.synth._costs import (
    TUNSTALL_WORDS,
    Histogram,
    entropy_bits,
    huffman_bits,
    huffman_table_bytes,
    rans_bits,
    rans_table_bytes,
    sparse_bytes,
    tunstall_bits,
    varint_bytes,
)
from brevisfs.synth._profile import Settings

NODE_BYTES = 6
"""What a node adds to a program, and what one more thing to decode must be worth in any profile."""

CODED_BYTES = 3
"""Parameters of a coded literal."""

STREAMED_WORDS = 16384
"""Words a block from which five streams are worth their lengths."""


SYMBOL_BITS = 8
"""Bits of the widest words that are coded: two more gain less than a thousandth."""

CODE_BITS = 11
PROBABILITY_BITS = 12
TUNSTALL_BITS = 12
TUNSTALL_LOSS = 1.02
"""Tunstall codewords take this much more than the entropy, or more."""


Measures = NDArray[np.float64]
Measure = TypeVar("Measure", float, NDArray[np.float64])
"""Of one histogram, or of each of several."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How many words a hole has and on which grid."""

    count: int
    block: int

    @property
    def blocks(self) -> int:
        """Blocks that hold a word of the hole, if it starts one."""
        return -(-self.count // self.block)


@dataclass(frozen=True, slots=True)
class Choice:
    """A completed hole: the node, its bytes in all, and its toll in bytes."""

    node: Node
    size: float
    toll: float = 0.0

    @property
    def rank(self) -> float:
        """What is compared: the smaller the better."""
        return self.size + self.toll


def better(first: Choice, second: Choice) -> Choice:
    """The one that ranks lower, the first where they are equal."""
    return second if second.rank < first.rank else first


def constant(word: int) -> Choice:
    """All words are one."""
    return Choice(Const(word), NODE_BYTES)


def raw(bits: int, extent: Extent) -> Choice:
    """The words as they are."""
    return Choice(Lit(Raw()), NODE_BYTES + extent.count * bits / 8)


def pack(bits: int, low: int, high: int, extent: Extent) -> Choice:
    """Words from `low` to `high` in as few bits as that range takes."""
    width = (high - low).bit_length()
    if width >= bits:
        return raw(bits, extent)
    return Choice(Lit(Pack(width, low)), NODE_BYTES + extent.count * width / 8)


def transposed(choice: Choice, columns: int, extent: Extent, settings: Settings) -> Choice:
    """The choice for words taken column by column."""
    toll = settings.toll * extent.count * _times.TRANSPOSE / 8
    return Choice(Transpose(columns, choice.node), choice.size + NODE_BYTES, choice.toll + toll)


def least(hists: Sequence[Histogram], extent: Extent, settings: Settings) -> Measures:
    """For each histogram a rank that no completion of the words counted goes below, unless raw or packed."""
    symbols = np.array([len(hist) for hist in hists])
    starts = np.cumsum(symbols) - symbols
    counts = np.concatenate(hists).astype(np.float64)
    totals = np.add.reduceat(counts, starts)
    terms = np.add.reduceat(counts * np.log2(np.maximum(counts, 1.0)), starts)
    entropies = np.log2(totals) - terms / totals
    present = counts > 0
    follows = np.concatenate(([True], present[:-1]))
    follows[starts] = True
    # A nibble a symbol, and two a run of absent ones.
    tables = np.add.reduceat(present + 2 * (follows & ~present), starts, dtype=np.int64) / 2
    times = settings.toll * np.minimum(_lookup_ns(entropies), _times.RANS)
    coded = extent.count * (entropies + times) / 8 + tables + CODED_BYTES
    others = 1 - np.maximum.reduceat(counts, starts) / totals
    listed = extent.count * (others * (1 + np.where(symbols > 2, np.log2(symbols) / 8, 0)))
    listed += 2 * extent.blocks + settings.toll * extent.count * _sparse_ns(others) / 8
    strings = _tunstall_floor(entropies, extent, settings)
    floors: Measures = NODE_BYTES + np.minimum(np.minimum(coded, listed), strings)
    return floors


def _lookup_ns(entropy: Measure) -> Measure:
    """Time of a word in Huffman codes: a lookup yields up to five words of about `entropy` + 1 bits."""
    time: Measure = _times.LOOKUP * np.minimum(1.0, np.maximum(0.2, (entropy + 1) / 11))
    return time


def _tunstall_floor(entropy: Measure, extent: Extent, settings: Settings) -> Measure:
    """A rank that Tunstall codewords do not go below."""
    bits = np.maximum(TUNSTALL_LOSS * entropy, TUNSTALL_BITS / TUNSTALL_WORDS)
    each = extent.count / 8 if extent.count >= STREAMED_WORDS else inf
    floor: Measure = each * bits * (1 + settings.toll * _times.TUNSTALL / TUNSTALL_BITS)
    return floor


def _sparse_ns(share: Measure) -> Measure:
    """Time of a word of which `share` are listed: most of it goes to finding their places."""
    return _times.SPARSE + _times.LISTED * share


def complete(hist: Histogram, bits: int, extent: Extent, settings: Settings) -> Choice:
    """The best literal or Const for words counted in `hist`, one bin a symbol of `bits` bits.

    `hist` may come from a sample; it is taken for the whole in proportion.
    """
    symbols = np.flatnonzero(hist)
    low, high = int(symbols[0]), int(symbols[-1])
    if low == high:
        return constant(low)
    best = better(raw(bits, extent), pack(bits, low, high, extent))
    best = better(best, sparse(hist, bits, extent, settings))
    entropy = entropy_bits(hist) / int(hist.sum())
    if entropy * extent.count / 8 < best.rank:
        best = better(best, huffman(hist[None], bits, extent, settings))
        if extent.count / 8 * (entropy + settings.toll * _times.RANS) < best.rank:
            best = better(best, rans(hist[None], bits, extent, settings))
    if bits <= SYMBOL_BITS and _tunstall_floor(entropy, extent, settings) < best.rank:
        best = better(best, tunstall(hist, extent, settings))
    return best


def sparse(hist: Histogram, bits: int, extent: Extent, settings: Settings) -> Choice:
    """The words that are not the most usual one, listed."""
    base = int(np.argmax(hist))
    share = 1 - int(hist[base]) / int(hist.sum())
    payload = sparse_bytes(share * extent.count, extent.count, bits)
    toll = settings.toll * extent.count * _sparse_ns(share) / 8
    return Choice(Lit(Sparse(base)), NODE_BYTES + 2 * extent.blocks + payload, toll)


def huffman(hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int = 0) -> Choice:
    """A table for each row of `hists`; with several, each segment of `segment` words has one of them."""
    streams = 5 if min(extent.count, extent.block) >= STREAMED_WORDS else 1
    coded = huffman_bits(hists, CODE_BITS) / int(hists.sum())
    per_block = 2 + (streams - 1) * varint_bytes(extent.block // 4) + streams * 0.6
    tables = huffman_table_bytes(hists)
    encoding = Huffman(streams, CODE_BITS, len(hists), segment)
    return _coded(encoding, coded, _lookup_ns(coded), tables + extent.blocks * per_block, extent, settings)


def rans(hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int = 0) -> Choice:
    """A table of probabilities for each row of `hists`; with several, as for Huffman codes."""
    lanes = 32 if min(extent.count, extent.block) >= STREAMED_WORDS else 4
    coded = sum(rans_bits(hist, PROBABILITY_BITS) for hist in hists) / int(hists.sum())
    tables = sum(rans_table_bytes(hist, PROBABILITY_BITS) for hist in hists)
    encoding = Rans(lanes, PROBABILITY_BITS, len(hists), segment)
    # A lane's initial state of 4 bytes holds about one byte's worth of words.
    return _coded(encoding, coded, _times.RANS, tables + extent.blocks * (2 + 3 * lanes), extent, settings)


def tunstall(hist: Histogram, extent: Extent, settings: Settings) -> Choice:
    """Strings of words in codewords of 12 bits: their table just fits the first level of a cache."""
    coded = tunstall_bits(hist, TUNSTALL_BITS) / int(hist.sum())
    time = _times.TUNSTALL * coded / TUNSTALL_BITS
    encoding = Tunstall(TUNSTALL_BITS, PROBABILITY_BITS)
    return _coded(
        encoding, coded, time, rans_table_bytes(hist, PROBABILITY_BITS) + 5 * extent.blocks, extent, settings
    )


def _coded(
    encoding: Huffman | Rans | Tunstall,
    coded: float,
    time: float,
    extra: float,
    extent: Extent,
    settings: Settings,
) -> Choice:
    """`coded` bits and `time` ns a word, `extra` bytes beside the codes; several tables cost more of each."""
    if encoding.tables > 1:
        coded += (encoding.tables - 1).bit_length() / encoding.segment
        time += _times.CLASSED + _times.TABLE * encoding.tables
    size = NODE_BYTES + CODED_BYTES + extra + extent.count * coded / 8
    return Choice(Lit(encoding), size, settings.toll * extent.count * time / 8)
