"""The leaves of a program and what all of their words are.

One native pass over all blocks counts the words of every narrow leaf, and completes it anew: symbols that
no sample had are in the tables, and a Const or pack that does not hold gives way to what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Analysis, _plan
from brevisfs.dsl import (
    Concat,
    Const,
    Lit,
    Map,
    Merge,
    Node,
    Palette,
    Raw,
    Repeat,
    Scan,
    Select,
    Sparse,
    Transpose,
    Zstd,
    children,
    to_wire,
)
from brevisfs.dsl._check import MAX_DEPTH
from brevisfs.synth import _literal
from brevisfs.synth._classes import Placed
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Words, container
from brevisfs.synth._source import PASS_WORDS, Part

RARE = 0.02
"""Share of exceptions up to which a wide Const becomes sparse instead of raw."""


CLASSED_WORDS = 1 << 15
"""Words from which several tables are looked at."""

HELD_WORDS = 1 << 20
"""Words up to which a leaf keeps its own while it is fitted: each use of them would undo the program anew."""

COUNTED_WHOLE = {8: 1 << 12, 16: 1 << 20}
"""By bits, words from which it pays to count whole words before fields."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: its prefix index, type, the word of the root's stream where its own begins.

    `scans` are the Scans above it, `scarce` that it is below the child of a Select; `upright` that it has
    the words of each block where the root has them.
    """

    index: int
    depth: int
    node: Node
    bits: int
    count: int
    start: int = 0
    scans: int = 0
    scarce: bool = False
    upright: bool = True

    @property
    def may_turn(self) -> bool:
        """Whether a Transpose may stand here."""
        return self.upright and self.depth < MAX_DEPTH


def places_of(node: Node, bits: int, count: int) -> list[Place]:
    """Every node in prefix order."""
    found: list[Place] = []
    ahead = [Place(0, 0, node, bits, count)]
    while ahead:
        place = replace(ahead.pop(), index=len(found))
        found.append(place)
        ahead += reversed(_below(place))
    return found


def _below(place: Place) -> list[Place]:
    node, start, below = place.node, place.start, []
    if isinstance(node, Lit | Const):
        return []
    scans = place.scans + isinstance(node, Scan)
    upright = place.upright and not isinstance(node, Concat | Repeat | Scan | Select)
    for nth, (child, bits, count) in enumerate(children(node, place.bits, place.count)):
        scarce = place.scarce or (isinstance(node, Select) and nth == 1)
        below.append(Place(0, place.depth + 1, child, bits, count, start, scans, scarce, upright))
        start += count if isinstance(node, Concat) else 0
    return below


class Leaf:
    """What is learnt about one leaf from all of its words."""

    def __init__(self, place: Place, block: int) -> None:
        self.place, self.node, self.bits = place, place.node, place.bits
        self.extent = Extent(place.count, block)
        self.fixed = place.node in (Lit(Raw()), Lit(Zstd()))
        self.narrow = not self.fixed and place.bits <= _literal.SYMBOL_BITS
        self.hist = np.zeros(1 << self.bits if self.narrow else 0, np.uint64)
        self.others = self.seen = 0
        self._runs: list[Words] = []

    @cached_property
    def held(self) -> Words | None:
        """All of the leaf's words, if they were kept because they may be asked for again."""
        return np.concatenate(self._runs) if self._runs else None

    @property
    def is_counted(self) -> bool:
        """Whether what completes it hangs on its words."""
        return self.narrow or self.place.scarce or isinstance(self.node, Const)

    def on(self, block: int) -> Leaf:
        """The leaf on blocks of another size."""
        other = copy(self)
        other.extent = replace(self.extent, block=block)
        return other

    def add(self, words: Words) -> None:
        """Take in some of the leaf's words."""
        if self.narrow:
            self.hist += _plan.count(words, 0, self.bits)
            if self.place.upright and CLASSED_WORDS <= self.place.count <= HELD_WORDS:
                self._runs.append(words)
            return
        self.seen += len(words)
        if isinstance(self.node, Const):
            self.others += int(np.count_nonzero(words != words.dtype.type(self.node.word)))

    def settle(self) -> None:
        """A Select's child has fewer words than its type says, spread over as many blocks."""
        if self.place.scarce:
            count = max(1, int(self.hist.sum()) if self.narrow else self.seen)
            self.extent = Extent(count, max(1, count * self.extent.block // self.extent.count))

    def add_counted(self, words: Words, counts: NDArray[np.uint64]) -> None:
        """Take in each of the words as often as `counts` says."""
        if self.narrow:
            # Floating-point sums of whole numbers: exact below 2^53.
            self.hist += np.bincount(words, counts, len(self.hist)).astype(np.uint64)
        elif isinstance(self.node, Const):
            self.others += int(counts[words != words.dtype.type(self.node.word)].sum())

    def completed(self, settings: Settings) -> Choice:
        """The leaf that fits all of the words."""
        if self.narrow:
            return _literal.complete(self.hist, self.bits, self.extent, settings)
        if self.node == Lit(Zstd()):
            return Choice(self.node, NODE_BYTES)
        if isinstance(self.node, Const) and self.others <= RARE * self.extent.count:
            return _literal.constant(self.node.word) if not self.others else self._sparse(self.node.word)
        return _literal.raw(self.bits, self.extent)

    def _sparse(self, base: int) -> Choice:
        return Choice(Lit(Sparse(base)), NODE_BYTES + self.others * (3 + self.bits / 8))


def count_leaves(part: Part, node: Node, places: list[Place]) -> dict[int, Leaf]:
    """Each leaf by prefix index, with all of its words taken in."""
    leaves = {place.index: Leaf(place, part.block) for place in places if isinstance(place.node, Lit | Const)}
    counted = [leaf for leaf in leaves.values() if leaf.is_counted]
    wordwise = all(isinstance(place.node, Lit | Const | Map | Merge) for place in places)
    if wordwise and part.count >= COUNTED_WHOLE.get(part.bits, inf):
        _count_by_word(part, node, counted)
    elif counted:
        _count_by_block(part, node, counted)
    for leaf in leaves.values():
        leaf.settle()
    return leaves


def _count_by_block(part: Part, node: Node, leaves: list[Leaf]) -> None:
    analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
    many = max(1, PASS_WORDS // part.block)
    for block in range(0, Extent(part.count, part.block).blocks, many):
        data = part.block_bytes(block, many)
        for leaf in leaves:
            leaf.add(analysis.words(block, data, leaf.place.index))


def _count_by_word(part: Part, node: Node, leaves: list[Leaf]) -> None:
    """Count whole words first, so that D need only be asked of each of the words there are."""
    counts = np.zeros(1 << part.bits, np.uint64)
    for words in part.passes():
        counts += _plan.count(words, 0, part.bits)
    every = np.arange(1 << part.bits, dtype=container(part.bits))
    analysis = Analysis(to_wire(node), part.bits, len(every), len(every))
    for leaf in leaves:
        leaf.add_counted(analysis.words(0, every, leaf.place.index), counts)


def words_of(part: Part, node: Node, leaf: Leaf, columns: int, step: int = 1) -> Iterator[Placed]:
    """The words of a narrow leaf in every step-th block, with the position of the first in its stream.

    Unless `columns` is 0, the words are those of tiles of so many columns.
    """
    if leaf.held is None:
        yield from _undone(part, node, leaf, columns, step)
    elif step > 1:
        for at in range(0, len(leaf.held), step * part.block):
            words = leaf.held[at : at + part.block]
            yield at, _plan.by_column(words, part.block, columns) if columns else words
    else:
        yield 0, _plan.by_column(leaf.held, part.block, columns) if columns else leaf.held


def _undone(part: Part, node: Node, leaf: Leaf, columns: int, step: int) -> Iterator[Placed]:
    """What `words_of` gives, from D of the program."""
    place, size = leaf.place, part.block
    raw = Lit(Raw())
    node, _ = rebuilt(node, 0, {place.index: Transpose(columns, raw) if columns else raw})
    analysis = Analysis(to_wire(node), part.bits, part.count, size)
    # A pass has many blocks, unless some are to be left out or words are missing at the end of each.
    many = 1 if step > 1 or place.scans else max(1, PASS_WORDS // size)
    for block in range(0, Extent(part.count, size).blocks, step * many):
        words = analysis.words(block, part.block_bytes(block, many), place.index + (columns > 0))
        if place.scans and len(words) and (block + 1) * size < part.count:
            # No block has a Scan's change to the next block's first word: anything stands for it.
            words = np.append(words, np.repeat(words[-1:], place.scans))
        if len(words):
            yield max(0, block * size - place.start), words


def rebuilt(node: Node, index: int, leaves: dict[int, Node]) -> tuple[Node, int]:
    """The node at prefix `index` with some of its leaves exchanged, and the index after its last one."""
    match node:
        case Lit() | Const():
            return leaves.get(index, node), index + 1
        case Concat(children=parts) | Merge(children=parts):
            after, made = index + 1, []
            for part in parts:
                child, after = rebuilt(part, after, leaves)
                made.append(child)
            return replace(node, children=tuple(made)), after
        case Select(_, mask, child):
            mask, after = rebuilt(mask, index + 1, leaves)
            child, after = rebuilt(child, after, leaves)
            return replace(node, mask=mask, child=child), after
        case Repeat() | Map() | Scan() | Palette() | Transpose():
            child, after = rebuilt(node.child, index + 1, leaves)
            return replace(node, child=child), after
