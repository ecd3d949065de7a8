"""From a program found on samples to one that holds for all of the data, with its shared parts.

One native pass over all blocks counts the words of every narrow leaf, and completes it anew from
what all words are: symbols that no sample had are in the tables, and a Const or pack that does not
hold gives way to what does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Analysis, Program, _plan, columns_item, huffman_tables, join_shared, rans_tables
from brevisfs._native._plan import Coding, Pairs, Way
from brevisfs.dsl import (
    Concat,
    Const,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
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
    children,
    to_wire,
)
from brevisfs.dsl._check import MAX_DEPTH
from brevisfs.synth import _classes, _literal
from brevisfs.synth._columns import Tile
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent, Histogram
from brevisfs.synth._profile import FEW_TABLES, Settings
from brevisfs.synth._sample import Words, container
from brevisfs.synth._source import PASS_WORDS, Part

RARE = 0.02
"""Share of exceptions up to which a wide Const becomes sparse instead of raw."""


CLASSED_WORDS = 1 << 15
"""Words from which several tables are looked at."""

LEARN_WORDS = 1 << 20
"""Words that classes of segments are learnt from."""

LONG_WORDS = 3 << 16
LONG_GAIN, SHORT_GAIN = 0.002, 0.02
"""The share of a leaf that classes of rows and of columns must save together for pairs to be tried: in leaves
of LONG_WORDS and more, and in shorter ones, where pairs bring less for the same time."""

HELD_WORDS = 1 << 20
"""Words up to which a leaf keeps its own while it is fitted: each use of them would undo the program anew."""

COUNTED_WHOLE = {8: 1 << 12, 16: 1 << 20}
"""By bits, words from which it pays to count whole words before fields."""

BLOCK_ENTRY_BYTES = 20
"""What an archive says of a block beside its payload."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that holds for all of the words, its shared parts, bytes and rank, zstd's not counted.

    `block` is the block size it is for. `classes` has the class of each segment of the leaves with
    several tables, by prefix index.
    """

    node: Node
    shared: tuple[bytes, ...]
    size: float
    rank: float
    block: int
    classes: dict[int, NDArray[np.uint8]]


def finish(
    part: Part, node: Node, shape: tuple[int, ...], tiles: Sequence[Tile], settings: Settings
) -> Finished:
    """The program `node` fitted to all of the words of the part, whose rows are those of `shape`.

    Coded leaves may become columns of one of the tiles, for which the block size changes.
    """
    if isinstance(node, Repeat):
        return _finish_repeat(part, node, shape, settings)
    places = _places(node, part.bits, part.count)
    leaves = _count_leaves(part, node, places)
    choices = {index: leaf.completed(settings) for index, leaf in leaves.items()}
    part, learnt = _laid_out(part, node, leaves, choices, shape, tiles, settings)
    classings, heads = {}, {}
    for index, way in learnt.items():
        leaf = leaves[index].on(part.block)
        words = _words(part, node, leaf, way.columns)
        found = _classes.assign(words, leaf.bits, way.segment, way.lengths, way.pairs)
        choice = way.choice(leaf, found.hists, settings)
        if choice.rank < choices[index].rank:
            choices[index], classings[index], heads[index] = choice, found, way.head
    done, _ = _rebuilt(node, 0, {index: choice.node for index, choice in choices.items()})
    shared, classes, added = [], {}, 0
    for index, leaf in leaves.items():
        completed, found_classes = choices[index].node, classings.get(index)
        added += isinstance(completed, Transpose)
        if found_classes is not None:
            classes[index + added] = found_classes.classes
        tables = _tables(completed, leaf.hist if found_classes is None else found_classes.hists)
        shared += [heads.get(index, b"") + each for each in tables]
    size = _inner_bytes(part, places) + sum(choice.size for choice in choices.values())
    rank = size + sum(choice.toll for choice in choices.values())
    return Finished(done, tuple(shared), size, rank, part.block, classes)


def _tables(leaf: Node, hists: NDArray[np.uint64]) -> list[bytes]:
    """The shared part that a completed leaf has, if any."""
    match leaf.child if isinstance(leaf, Transpose) else leaf:
        case Lit(Huffman(max_length=max_length)):
            return [huffman_tables(hists, max_length)]
        case Lit(Rans(prob_bits=prob_bits) | Tunstall(prob_bits=prob_bits)):
            return [rans_tables(hists, prob_bits)]
    return []


def _finish_repeat(part: Part, node: Repeat, shape: tuple[int, ...], settings: Settings) -> Finished:
    # A Repeat's child is evaluated as one block.
    count = part.count // node.times
    period = replace(part, count=count, block=-(-count // 64) * 64)
    child = finish(period, node.child, shape, (), settings)
    shared = join_shared(child.shared)
    program = Program(to_wire(child.node), shared, part.bits, count, period.block, child.classes)
    payload = bytearray(program.encode_bound())
    length = program.encode_block(0, period.read(0, period.nbytes), payload)
    # The classes stand in the payload: none are left to be encoded with the blocks.
    parts = (bytes(payload[:length]), *child.shared)
    size, rank = child.size + NODE_BYTES, child.rank + NODE_BYTES
    return Finished(Repeat(node.times, child.node), parts, size, rank, part.block, {})


@dataclass(frozen=True, slots=True)
class _Way:
    """How the words of a leaf are coded in classes: `columns` is 0 where segments are of rows."""

    way: Way
    columns: int
    segment: int
    rank: float
    lengths: NDArray[np.int16]
    pairs: Pairs | None = None

    @property
    def head(self) -> bytes:
        """What stands before the tables."""
        pairs = self.pairs
        return b"" if pairs is None else columns_item(pairs.places, pairs.pairs, pairs.tables)

    def choice(self, leaf: _Leaf, hists: Histogram, settings: Settings) -> Choice:
        """The leaf coded with classes of these histograms.

        That one table is best for one coder need not hold for several, whose tables cost more.
        """
        other = Way.RANS if self.way == Way.HUFFMAN else Way.HUFFMAN
        coded = (self._coded(way, leaf, hists, settings) for way in (self.way, other))
        choice = _literal.better(*coded)
        return _literal.transposed(choice, self.columns, leaf.extent, settings) if self.columns else choice

    def _coded(self, way: Way, leaf: _Leaf, hists: Histogram, settings: Settings) -> Choice:
        form = (hists, leaf.bits, leaf.extent, settings, self.segment)
        return _literal.coded(way, *form) if self.pairs is None else _literal.paired(way, *form, self.pairs)


def _laid_out(
    part: Part,
    node: Node,
    leaves: dict[int, _Leaf],
    choices: dict[int, Choice],
    shape: tuple[int, ...],
    tiles: Sequence[Tile],
    settings: Settings,
) -> tuple[Part, dict[int, _Way]]:
    """The part with the block size that ranks best, and for the leaves that gain, their classes."""
    coded = {
        index: encoded
        for index, leaf in leaves.items()
        if (encoded := _classable(leaf, choices[index], whole=index == 0)) is not None
    }
    segments = {index: _classes.segment_words(shape, leaves[index].extent.count) for index in coded}
    rows: dict[int, _Way] = {}
    for index, encoded in coded.items():
        way = _learn(part, node, leaves[index], encoded, 0, segments[index], settings)
        if way is not None and way.rank < choices[index].rank:
            rows[index] = way
    columns = [
        (tile, index, way)
        for tile in tiles
        for index, encoded in coded.items()
        if leaves[index].place.may_turn
        and (way := _learn_columns(part, node, leaves[index], encoded, tile, settings)) is not None
    ]
    usual = dict(rows)
    for index, encoded in coded.items():
        rank, gained = choices[index].rank, [0.0]
        if index in rows:
            gained.append(rank - rows[index].rank)
        gained.append(max((rank - way.rank for _, at, way in columns if at == index), default=0.0))
        long = leaves[index].extent.count >= LONG_WORDS
        if sum(gained) > (LONG_GAIN if long else SHORT_GAIN) * rank:
            pairs = _learn(part, node, leaves[index], encoded, 0, segments[index], settings, paired=True)
            if pairs is not None and pairs.rank < (rows.get(index) or choices[index]).rank:
                usual[index] = pairs
    best, found = part, usual
    least = _reached(part, choices, usual)
    for tile in tiles:
        tiled = replace(part, block=tile.block)
        turned = {
            index: way
            for each, index, way in columns
            if each == tile and way.rank < (usual.get(index) or choices[index]).rank
        }
        reached = _reached(tiled, choices, usual | turned)
        if turned and reached < least:
            best, found, least = tiled, usual | turned, reached
    return best, found


def _reached(part: Part, choices: dict[int, Choice], ways: dict[int, _Way]) -> float:
    """The rank of a program whose leaves are coded like this."""
    blocks = Extent(part.count, part.block).blocks
    ranks = [(ways.get(index) or choice).rank for index, choice in choices.items()]
    return sum(ranks) + BLOCK_ENTRY_BYTES * blocks


def _classable(leaf: _Leaf, choice: Choice, whole: bool) -> Way | None:
    """How classes of the leaf's words would be coded, if they are looked at.

    Words that are not cut may show only by their places that they are worth coding.
    """
    if leaf.extent.count < CLASSED_WORDS or leaf.place.scarce:
        return None
    match choice.node:
        case Lit(Rans()):
            return Way.RANS
        case Lit(Huffman() | Tunstall()):
            return Way.HUFFMAN
        case Lit(Raw()) if whole and leaf.narrow:
            return Way.HUFFMAN
    return None


def _learn(
    part: Part,
    node: Node,
    leaf: _Leaf,
    way: Way,
    columns: int,
    segment: int,
    settings: Settings,
    *,
    paired: bool = False,
) -> _Way | None:
    """Classes of the segments of a leaf, perhaps in pairs with those of places, learnt from some words."""
    extent, many = leaf.extent, settings.many_tables * part.nbytes
    coding = Coding(way, leaf.bits, settings.tables, FEW_TABLES, many, segment, extent.count, extent.block)
    words = _words(part, node, leaf, columns, step=-(-extent.count // LEARN_WORDS))
    tolls = _literal.tolls(settings)
    if paired:
        rank, pairs = _classes.learn_pairs(words, coding, tolls)
        return None if pairs is None else _Way(way, columns, segment, rank, pairs.lengths, pairs)
    rank, lengths = _classes.learn(words, coding, tolls)
    if columns:
        rank += _literal.transposed(Choice(node, 0.0), columns, extent, settings).rank
    return None if lengths is None else _Way(way, columns, segment, rank, lengths)


def _learn_columns(
    part: Part, node: Node, leaf: _Leaf, way: Way, tile: Tile, settings: Settings
) -> _Way | None:
    """Classes of the columns of tiles."""
    tiled = replace(part, block=tile.block)
    return _learn(tiled, node, leaf.on(tile.block), way, tile.columns, tile.rows, settings)


def _words(part: Part, node: Node, leaf: _Leaf, columns: int, step: int = 1) -> Iterator[_classes.Placed]:
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


def _undone(part: Part, node: Node, leaf: _Leaf, columns: int, step: int) -> Iterator[_classes.Placed]:
    """What `_words` gives, from D of the program."""
    place, size = leaf.place, part.block
    raw = Lit(Raw())
    node, _ = _rebuilt(node, 0, {place.index: Transpose(columns, raw) if columns else raw})
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


def _inner_bytes(part: Part, places: list[_Place]) -> int:
    """What the nodes that are no leaves take: themselves, and a Scan its first words."""
    total = 0
    for place in places:
        if not isinstance(place.node, Lit | Const):
            total += NODE_BYTES
        if isinstance(place.node, Scan):
            total += Extent(place.count, part.block).blocks * ((place.bits + 7) // 8)
    return total


@dataclass(frozen=True, slots=True)
class _Place:
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


def _places(node: Node, bits: int, count: int) -> list[_Place]:
    """Every node in prefix order."""
    found: list[_Place] = []
    ahead = [_Place(0, 0, node, bits, count)]
    while ahead:
        place = replace(ahead.pop(), index=len(found))
        found.append(place)
        ahead += reversed(_below(place))
    return found


def _below(place: _Place) -> list[_Place]:
    node, start, below = place.node, place.start, []
    if isinstance(node, Lit | Const):
        return []
    scans = place.scans + isinstance(node, Scan)
    upright = place.upright and not isinstance(node, Concat | Repeat | Scan | Select)
    for nth, (child, bits, count) in enumerate(children(node, place.bits, place.count)):
        scarce = place.scarce or (isinstance(node, Select) and nth == 1)
        below.append(_Place(0, place.depth + 1, child, bits, count, start, scans, scarce, upright))
        start += count if isinstance(node, Concat) else 0
    return below


class _Leaf:
    """What is learnt about one leaf from all of its words."""

    def __init__(self, place: _Place, block: int) -> None:
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

    def on(self, block: int) -> _Leaf:
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


def _count_leaves(part: Part, node: Node, places: list[_Place]) -> dict[int, _Leaf]:
    """Each leaf by prefix index, with all of its words taken in."""
    leaves = {
        place.index: _Leaf(place, part.block) for place in places if isinstance(place.node, Lit | Const)
    }
    counted = [leaf for leaf in leaves.values() if leaf.is_counted]
    wordwise = all(isinstance(place.node, Lit | Const | Map | Merge) for place in places)
    if wordwise and part.count >= COUNTED_WHOLE.get(part.bits, inf):
        _count_by_word(part, node, counted)
    elif counted:
        _count_by_block(part, node, counted)
    for leaf in leaves.values():
        leaf.settle()
    return leaves


def _count_by_block(part: Part, node: Node, leaves: list[_Leaf]) -> None:
    analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
    many = max(1, PASS_WORDS // part.block)
    for block in range(0, Extent(part.count, part.block).blocks, many):
        data = part.block_bytes(block, many)
        for leaf in leaves:
            leaf.add(analysis.words(block, data, leaf.place.index))


def _count_by_word(part: Part, node: Node, leaves: list[_Leaf]) -> None:
    """Count whole words first, so that D need only be asked of each of the words there are."""
    counts = np.zeros(1 << part.bits, np.uint64)
    for words in part.passes():
        counts += _plan.count(words, 0, part.bits)
    every = np.arange(1 << part.bits, dtype=container(part.bits))
    analysis = Analysis(to_wire(node), part.bits, len(every), len(every))
    for leaf in leaves:
        leaf.add_counted(analysis.words(0, every, leaf.place.index), counts)


def _rebuilt(node: Node, index: int, leaves: dict[int, Node]) -> tuple[Node, int]:
    """The node at prefix `index` with some of its leaves exchanged, and the index after its last one."""
    match node:
        case Lit() | Const():
            return leaves.get(index, node), index + 1
        case Concat(children=parts) | Merge(children=parts):
            after, rebuilt = index + 1, []
            for part in parts:
                child, after = _rebuilt(part, after, leaves)
                rebuilt.append(child)
            return replace(node, children=tuple(rebuilt)), after
        case Select(_, mask, child):
            mask, after = _rebuilt(mask, index + 1, leaves)
            child, after = _rebuilt(child, after, leaves)
            return replace(node, mask=mask, child=child), after
        case Repeat() | Map() | Scan() | Palette() | Transpose():
            child, after = _rebuilt(node.child, index + 1, leaves)
            return replace(node, child=child), after
