"""From a program found on samples to one that holds for all of the data, with its shared parts.

One native pass over all blocks counts the words of every narrow leaf, and completes it anew from
what all words are: symbols that no sample had are in the tables, and a Const or pack that does not
hold gives way to what does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Analysis, Buffer, Program, _plan, huffman_tables, join_shared, rans_tables
from brevisfs._native._plan import Coding, Way
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
    walk,
)
from brevisfs.dsl._check import MAX_DEPTH
from brevisfs.synth import _classes, _literal
from brevisfs.synth._columns import Tile
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent, Histogram
from brevisfs.synth._profile import FEW_TABLES, Settings
from brevisfs.synth._sample import Words, container
from brevisfs.synth._source import Part

RARE = 0.02
"""Share of exceptions up to which a wide Const becomes sparse instead of raw."""


CLASSED_WORDS = 1 << 15
"""Words from which several tables are looked at."""

LEARN_WORDS = 1 << 20
"""Words that classes of segments are learnt from."""

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
    leaves = _count_leaves(part, node)
    choices = {index: leaf.completed(settings) for index, leaf in leaves.items()}
    part, learnt = _laid_out(part, node, leaves, choices, shape, tiles, settings)
    classings = {}
    for index, way in learnt.items():
        leaf = leaves[index].on(part.block)
        words = _words(part, node, index, way.columns)
        found = _classes.assign(words, leaf.bits, way.segment, way.lengths)
        choice = way.choice(leaf, found.hists, settings)
        if choice.rank < choices[index].rank:
            choices[index], classings[index] = choice, found
    done, _ = _rebuilt(node, 0, {index: choice.node for index, choice in choices.items()})
    shared = []
    for index, leaf in leaves.items():
        hists = classings[index].hists if index in classings else leaf.hist
        match choices[index].node:
            case Lit(Huffman(max_length=max_length)) | Transpose(_, Lit(Huffman(max_length=max_length))):
                shared.append(huffman_tables(hists, max_length))
            case Lit(Rans(prob_bits=prob_bits) | Tunstall(prob_bits=prob_bits)) | Transpose(
                _, Lit(Rans(prob_bits=prob_bits))
            ):
                shared.append(rans_tables(hists, prob_bits))
    size = _inner_bytes(part, node) + sum(choice.size for choice in choices.values())
    rank = size + sum(choice.toll for choice in choices.values())
    places = dict(zip(leaves, _leaf_indexes(done, part), strict=True))
    classes = {places[index]: found.classes for index, found in classings.items()}
    return Finished(done, tuple(shared), size, rank, part.block, classes)


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

    def choice(self, leaf: _Leaf, hists: Histogram, settings: Settings) -> Choice:
        """The leaf coded with classes of these histograms."""
        choice = _literal.coded(self.way, hists, leaf.bits, leaf.extent, settings, self.segment)
        return _literal.transposed(choice, self.columns, leaf.extent, settings) if self.columns else choice


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
    rows: dict[int, _Way] = {}
    for index, encoded in coded.items():
        segment = _classes.segment_words(shape, leaves[index].extent.count)
        way = _learn(part, node, index, leaves[index], encoded, 0, segment, settings)
        if way is not None and way.rank < choices[index].rank:
            rows[index] = way
    best, found = part, rows
    least = _reached(part, choices, rows)
    upright = _upright(node, part.bits, part.count)
    for tile in tiles:
        tiled = replace(part, block=tile.block)
        ways = dict(rows)
        for index, encoded in coded.items():
            if index in upright:
                leaf = leaves[index].on(tile.block)
                way = _learn(tiled, node, index, leaf, encoded, tile.columns, tile.rows, settings)
                if way is not None and way.rank < (rows.get(index) or choices[index]).rank:
                    ways[index] = way
        reached = _reached(tiled, choices, ways)
        taken = any(way.columns for way in ways.values())
        if taken and reached < least:
            best, found, least = tiled, ways, reached
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
    if leaf.extent.count < CLASSED_WORDS or leaf.scarce:
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
    index: int,
    leaf: _Leaf,
    way: Way,
    columns: int,
    segment: int,
    settings: Settings,
) -> _Way | None:
    """Classes of the segments of a leaf, learnt from some of its words."""
    extent = leaf.extent
    many = settings.many_tables * part.nbytes
    coding = Coding(way, leaf.bits, settings.tables, FEW_TABLES, many, segment, extent.count, extent.block)
    words = _words(part, node, index, columns, step=-(-extent.count // LEARN_WORDS))
    rank, lengths = _classes.learn(words, coding, _literal.tolls(settings))
    if columns:
        rank += _literal.transposed(Choice(node, 0.0), columns, extent, settings).rank
    return None if lengths is None else _Way(way, columns, segment, rank, lengths)


def _words(part: Part, node: Node, index: int, columns: int, step: int = 1) -> Iterator[_classes.Placed]:
    """The words of a narrow leaf in every step-th block, with the position of the first in its stream.

    Unless `columns` is 0, the words are those of tiles of so many columns.
    """
    size = part.block
    scans = _scans_above(node, part.bits, part.count)[index]
    start = _starts(node, part.bits, part.count)[index]
    leaf = Lit(Raw())
    node, _ = _rebuilt(node, 0, {index: Transpose(columns, leaf) if columns else leaf})
    analysis = Analysis(to_wire(node), part.bits, part.count, size)
    for block in range(0, -(-part.count // size), step):
        words = analysis.words(block, part.block_bytes(block), index + (columns > 0))
        if scans and len(words) and (block + 1) * size < part.count:
            # No block has a Scan's change to the next block's first word: anything stands for it.
            words = np.append(words, np.repeat(words[-1:], scans))
        if len(words):
            yield max(0, block * size - start), words


def _inner_bytes(part: Part, node: Node) -> int:
    """What the nodes that are no leaves take: themselves, and a Scan its first words."""
    total = 0
    for _, _, inner, bits, count in walk(node, part.bits, part.count):
        if not isinstance(inner, Lit | Const):
            total += NODE_BYTES
        if isinstance(inner, Scan):
            total += Extent(count, part.block).blocks * ((bits + 7) // 8)
    return total


class _Leaf:
    """What is learnt about one leaf from all of its words."""

    def __init__(self, node: Node, bits: int, extent: Extent, scarce: bool) -> None:
        self.node, self.bits, self.extent, self.scarce = node, bits, extent, scarce
        self.fixed = node in (Lit(Raw()), Lit(Zstd()))
        self.narrow = not self.fixed and bits <= _literal.SYMBOL_BITS
        self.hist = np.zeros(1 << bits if self.narrow else 0, np.uint64)
        self.others = self.seen = 0

    def on(self, block: int) -> _Leaf:
        """The leaf on blocks of another size."""
        other = copy(self)
        other.extent = replace(self.extent, block=block)
        return other

    def add(self, analysis: Analysis, index: int, block: int, data: Buffer) -> None:
        """Take in the leaf's words in one block."""
        if self.narrow:
            analysis.histogram(block, data, index, self.hist)
            return
        words = analysis.words(block, data, index)
        self.seen += len(words)
        if isinstance(self.node, Const):
            self.others += int(np.count_nonzero(words != words.dtype.type(self.node.word)))

    def settle(self) -> None:
        """A Select's child has fewer words than its type says, spread over as many blocks."""
        if self.scarce:
            count = max(1, int(self.hist.sum()) if self.narrow else self.seen)
            self.extent = Extent(count, max(1, count * self.extent.block // self.extent.count))

    def add_counted(self, words: Words, counts: NDArray[np.uint64]) -> None:
        """Take in each of the leaf's words as often as `counts` says."""
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


def _starts(node: Node, bits: int, count: int) -> dict[int, int]:
    """By prefix index, the word of the root's stream where each node's stream begins."""
    starts: dict[int, int] = {}
    ahead = [(0, node, bits, count)]
    while ahead:
        start, inner, bits, count = ahead.pop()
        starts[len(starts)] = start
        below = []
        for child, child_bits, child_count in children(inner, bits, count):
            below.append((start, child, child_bits, child_count))
            start += child_count if isinstance(inner, Concat) else 0
        ahead += reversed(below)
    return starts


def _upright(node: Node, bits: int, count: int) -> set[int]:
    """Prefix indexes of the nodes that have the words of each block where the root has them.

    Only those that may have another node above them.
    """
    found: set[int] = set()
    aside: int | None = None
    for index, depth, inner, _, _ in walk(node, bits, count):
        if aside is not None and depth <= aside:
            aside = None
        if aside is None:
            if depth < MAX_DEPTH:
                found.add(index)
            if isinstance(inner, Concat | Repeat | Scan | Select):
                aside = depth
    return found


def _leaf_indexes(node: Node, part: Part) -> list[int]:
    """Prefix indexes of the leaves."""
    nodes = walk(node, part.bits, part.count)
    return [index for index, _, inner, _, _ in nodes if isinstance(inner, Lit | Const)]


def _scans_above(node: Node, bits: int, count: int) -> dict[int, int]:
    """By prefix index, how many Scans each node is below."""
    above: dict[int, int] = {}
    ahead = [(0, node, bits, count)]
    while ahead:
        scans, inner, bits, count = ahead.pop()
        above[len(above)] = scans
        scans += isinstance(inner, Scan)
        ahead += reversed([(scans, *child) for child in children(inner, bits, count)])
    return above


def _scarce(node: Node, bits: int, count: int) -> set[int]:
    """Prefix indexes of the nodes below the child of a Select."""
    found: set[int] = set()
    ahead = [(False, node, bits, count)]
    for index in range(sum(1 for _ in walk(node, bits, count))):
        scarce, inner, bits, count = ahead.pop()
        if scarce:
            found.add(index)
        below = [(scarce, *child) for child in children(inner, bits, count)]
        if isinstance(inner, Select):
            below[-1] = (True, *below[-1][1:])
        ahead += reversed(below)
    return found


def _count_leaves(part: Part, node: Node) -> dict[int, _Leaf]:
    """Each leaf by prefix index, with all of its words taken in."""
    scarce = _scarce(node, part.bits, part.count)
    leaves = {
        index: _Leaf(leaf, bits, Extent(count, part.block), index in scarce)
        for index, _, leaf, bits, count in walk(node, part.bits, part.count)
        if isinstance(leaf, Lit | Const)
    }
    wanted = [
        (index, leaf)
        for index, leaf in leaves.items()
        if leaf.narrow or leaf.scarce or isinstance(leaf.node, Const)
    ]
    if wanted and part.count >= COUNTED_WHOLE.get(part.bits, inf) and _is_wordwise(node, part):
        _count_by_word(part, node, wanted)
    else:
        analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
        for block in range(-(-part.count // part.block) if wanted else 0):
            data = part.block_bytes(block)
            for index, leaf in wanted:
                leaf.add(analysis, index, block, data)
    for leaf in leaves.values():
        leaf.settle()
    return leaves


def _is_wordwise(node: Node, part: Part) -> bool:
    """Whether each word of a leaf hangs on one word of the root's stream, the one in its place."""
    nodes = walk(node, part.bits, part.count)
    return all(isinstance(inner, Lit | Const | Map | Merge) for _, _, inner, _, _ in nodes)


def _count_by_word(part: Part, node: Node, wanted: list[tuple[int, _Leaf]]) -> None:
    """Count whole words first, so that D need only be asked of each of the words there are."""
    counts = np.zeros(1 << part.bits, np.uint64)
    for words in part.passes():
        counts += _plan.count(words, 0, part.bits)
    every = np.arange(1 << part.bits, dtype=container(part.bits))
    analysis = Analysis(to_wire(node), part.bits, len(every), len(every))
    for index, leaf in wanted:
        leaf.add_counted(analysis.words(0, every, index), counts)


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
