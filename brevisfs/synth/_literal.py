"""Literal completion: the cheapest encoding of a hole's words, from their histogram.

A `Choice` has the bytes its node will take, program and shared parts included, and the toll its
decoding pays under the profile. Prices are worked out in native code (native/plan_cost.c). Holes whose
words have no histogram are completed as raw or, in `_fields`, as zstd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import _plan
from brevisfs._native._plan import (
    CODE_BITS,
    NODE_BYTES,
    PROBABILITY_BITS,
    SYMBOL_BITS,
    TUNSTALL_BITS,
    Pairs,
    Way,
)
from brevisfs.dsl import (
    Concat,
    Const,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Pack,
    Palette,
    Rans,
    Raw,
    Repeat,
    Scan,
    Select,
    Sparse,
    Transpose,
    Tunstall,
    Zstd,
)
from brevisfs.synth import _times
from brevisfs.synth._profile import Settings

__all__ = ["CODE_BITS", "NODE_BYTES", "PROBABILITY_BITS", "SYMBOL_BITS", "TUNSTALL_BITS"]

Histogram = NDArray[np.int64] | NDArray[np.uint64]
"""Counts by symbol, one bin for each word of some bits."""


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


def inside(node: Node) -> Iterator[Node]:
    """The node and all below it, in prefix order."""
    yield node
    match node:
        case Concat(children=below) | Merge(children=below):
            for child in below:
                yield from inside(child)
        case Select(_, mask, child):
            yield from inside(mask)
            yield from inside(child)
        case Repeat(_, child) | Map(_, child) | Scan(_, child) | Palette(_, child) | Transpose(_, child):
            yield from inside(child)


def better(first: Choice, second: Choice) -> Choice:
    """The one that ranks lower, the first where they are equal."""
    return second if second.rank < first.rank else first


def constant(word: int) -> Choice:
    """All words are one."""
    return Choice(Const(word), NODE_BYTES)


def raw(bits: int, extent: Extent) -> Choice:
    """The words as they are."""
    return Choice(Lit(Raw()), NODE_BYTES + extent.count * bits / 8)


def transposed(choice: Choice, columns: int, extent: Extent, settings: Settings) -> Choice:
    """The choice for words taken column by column."""
    toll = settings.toll * extent.count * _times.TRANSPOSE / 8
    return Choice(Transpose(columns, choice.node), choice.size + NODE_BYTES, choice.toll + toll)


@lru_cache
def tolls(settings: Settings) -> _plan.Tolls:
    """What the profile pays for decoding."""
    times = {name: getattr(_times, name.upper()) for name in _plan.TIMED}
    if settings.portable:
        times["rans_few"] = _times.RANS
    return _plan.tolls(settings.toll, settings.lanes, times)


def complete(hist: Histogram, bits: int, extent: Extent, settings: Settings) -> Choice:
    """The best literal or Const for words counted in `hist`, one bin a symbol of `bits` bits.

    `hist` may come from a sample; it is taken for the whole in proportion.
    """
    return choice(_plan.complete(hist, bits, extent.count, extent.block, tolls(settings)))


def coded(
    way: Way, hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int = 0
) -> Choice:
    """Words coded in one way, with a table for each row of `hists`.

    With several tables each segment of `segment` words has one of them.
    """
    done = _plan.coded(way, hists, bits, segment, extent.count, extent.block, tolls(settings))
    return choice(done, hists.size >> bits, segment)


def paired(
    way: Way, hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int, pairs: Pairs
) -> Choice:
    """Words coded in one way, with a table for each row of `hists`.

    Each pair of a segment's class and a place's has one of them.
    """
    done = _plan.coded(way, hists, bits, segment, extent.count, extent.block, tolls(settings))
    done = _plan.in_pairs(done, pairs, segment, extent.count, tolls(settings))
    return Choice(_node(done, pairs.tables, segment, *pairs.pairs.shape), done.size, done.toll)


def choice(done: _plan.Completed, tables: int = 1, segment: int = 0) -> Choice:
    """A completed field as a node."""
    return Choice(_node(done, tables, segment if tables > 1 else 0), done.size, done.toll)


def _node(done: _plan.Completed, tables: int, segment: int, rows: int = 0, columns: int = 0) -> Node:
    match done.way:
        case Way.CONST:
            return Const(done.word)
        case Way.PACK:
            return Lit(Pack(done.number, done.word))
        case Way.SPARSE:
            return Lit(Sparse(done.word))
        case Way.HUFFMAN:
            return Lit(Huffman(done.number, CODE_BITS, tables, segment, rows, columns))
        case Way.RANS:
            return Lit(Rans(done.number, PROBABILITY_BITS, tables, segment, rows, columns))
        case Way.TUNSTALL:
            return Lit(Tunstall(TUNSTALL_BITS, PROBABILITY_BITS))
        case Way.ZSTD:
            return Lit(Zstd())
        case _:
            return Lit(Raw())
