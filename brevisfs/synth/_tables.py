"""Several tables for a leaf: its words dealt to them by row, by row and column, or by the columns of tiles.

Each way of dealing is learnt on some of the words, which tells about what it comes to. The best by that
is made with all of the words, and others too as long as they promise less than what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import columns_item
from brevisfs._native._plan import Coding, Pairs, Way
from brevisfs.dsl import Huffman, Lit, Node, Rans, Raw, Tunstall
from brevisfs.synth import _classes, _literal
from brevisfs.synth._classes import Classing
from brevisfs.synth._columns import Tile
from brevisfs.synth._leaves import CLASSED_WORDS, Leaf, words_of
from brevisfs.synth._literal import Choice, Extent, Histogram
from brevisfs.synth._profile import FEW_TABLES, Settings
from brevisfs.synth._source import Part

LEARN_WORDS = 1 << 20
"""Words that classes of segments are learnt from."""

LONG_WORDS = 3 << 16
LONG_GAIN, SHORT_GAIN = 0.002, 0.02
"""The share of a leaf that classes of rows and of columns must save together for pairs to be tried: in leaves
of LONG_WORDS and more, and in shorter ones, where pairs bring less for the same time."""

BLOCK_ENTRY_BYTES = 20
"""What an archive says of a block beside its payload."""


@dataclass(frozen=True, slots=True, eq=False)
class _Dealing:
    """How the words of a leaf are dealt to tables; `columns` is 0 where segments are of rows.

    `rank` is about what it comes to, with the bytes that it is `asked` to save.
    """

    columns: int
    segment: int
    rank: float
    lengths: NDArray[np.int16]
    pairs: Pairs | None = None
    asked: float = 0.0

    @property
    def head(self) -> bytes:
        """What stands before the tables."""
        pairs = self.pairs
        return b"" if pairs is None else columns_item(pairs.places, pairs.pairs, pairs.tables)

    def choice(self, leaf: Leaf, hists: Histogram, settings: Settings) -> Choice:
        """The leaf coded with tables of these histograms.

        That one table is best for one coder need not hold for several, whose tables cost more.
        """
        form = (hists, leaf.bits, leaf.extent, settings, self.segment)
        pairs = self.pairs
        coded = (
            _literal.coded(way, *form) if pairs is None else _literal.paired(way, *form, pairs)
            for way in (Way.HUFFMAN, Way.RANS)
        )
        choice = _literal.better(*coded)
        return _literal.transposed(choice, self.columns, leaf.extent, settings) if self.columns else choice


@dataclass(frozen=True, slots=True)
class Dealt:
    """A leaf with all of its words dealt; without `classing` it has one table at most.

    `head` stands before the tables, `rank` is with what the dealing was asked to save.
    """

    choice: Choice
    rank: float
    classing: Classing | None = None
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Layout:
    """A part on blocks of some size, its leaves, and what they rank together with the blocks' entries."""

    part: Part
    leaves: dict[int, Dealt]
    rank: float


class _Ranked(Protocol):
    @property
    def rank(self) -> float: ...


_Made = TypeVar("_Made", bound=_Ranked)
_Candidates = list[tuple[float, Callable[[], _Made]]]


def _least(candidates: _Candidates[_Made]) -> _Made:
    """The best of what is made, in the order of what was reckoned, until no other promises less."""
    (_, first), *others = sorted(candidates, key=itemgetter(0))
    best = first()
    for reckoned, make in others:
        if reckoned >= best.rank:
            break
        made = make()
        best = made if made.rank < best.rank else best
    return best


def lay_out(
    part: Part,
    node: Node,
    leaves: dict[int, Leaf],
    choices: dict[int, Choice],
    shape: tuple[int, ...],
    tiles: Sequence[Tile],
    settings: Settings,
) -> Layout:
    """The leaves, which have these choices with one table at most, on the blocks that rank best."""
    return _Dealer(part, node, leaves, choices, settings).laid_out(shape, tiles)


class _Dealer:
    """Learns how the words of each leaf may be dealt, and deals them."""

    def __init__(
        self,
        part: Part,
        node: Node,
        leaves: dict[int, Leaf],
        choices: dict[int, Choice],
        settings: Settings,
    ) -> None:
        self._part, self._node, self._leaves, self._choices = part, node, leaves, choices
        self._settings = settings
        self._classings: dict[_Dealing, Classing] = {}

    def laid_out(self, shape: tuple[int, ...], tiles: Sequence[Tile]) -> Layout:
        """The best layout."""
        usual: dict[int, list[_Dealing]] = {}
        by_tile: dict[Tile, dict[int, list[_Dealing]]] = {tile: {} for tile in tiles}
        for index, leaf in self._leaves.items():
            if not _classable(leaf, self._choices[index], whole=index == 0):
                continue
            segment = _classes.segment_words(shape, leaf.extent.count)
            turned = {
                tile: found
                for tile in tiles
                if leaf.place.may_turn
                for found in self._learn(leaf, tile.rows, tile)
            }
            usual[index] = self._learn(leaf, segment)
            if self._may_pair(index, [*usual[index], *turned.values()]):
                usual[index] += self._learn_pairs(leaf, segment)
            for tile, found in turned.items():
                if found.rank < min([self._choices[index].rank, *(each.rank for each in usual[index])]):
                    by_tile[tile][index] = [found, *usual[index]]
        layouts = [(self._part, usual)]
        layouts += [
            (replace(self._part, block=tile.block), usual | found) for tile, found in by_tile.items() if found
        ]
        return _least([(self._reckoned(*each), partial(self._made, *each)) for each in layouts])

    def _may_pair(self, index: int, known: list[_Dealing]) -> bool:
        """Whether what rows and columns save says that pairs of them are worth a look."""
        rank = self._choices[index].rank
        saved = [
            max((rank - each.rank for each in known if bool(each.columns) == turned), default=0.0)
            for turned in (False, True)
        ]
        long = self._leaves[index].extent.count >= LONG_WORDS
        return sum(max(0.0, each) for each in saved) > (LONG_GAIN if long else SHORT_GAIN) * rank

    def _coding(self, leaf: Leaf, segment: int) -> Coding:
        settings, extent = self._settings, leaf.extent
        many = settings.many_tables * self._part.nbytes
        return Coding(leaf.bits, settings.tables, FEW_TABLES, many, segment, extent.count, extent.block)

    def _some(self, part: Part, leaf: Leaf, columns: int) -> list[_classes.Placed]:
        step = -(-leaf.extent.count // LEARN_WORDS)
        return list(words_of(part, self._node, leaf, columns, step))

    def _learn(self, leaf: Leaf, segment: int, tile: Tile | None = None) -> list[_Dealing]:
        """The dealing by rows, or by the columns of tiles; none if one class is best."""
        part, columns = self._part, 0
        if tile is not None:
            part, leaf, columns = replace(part, block=tile.block), leaf.on(tile.block), tile.columns
        words, tolls = self._some(part, leaf, columns), _literal.tolls(self._settings)
        rank, lengths = _classes.learn(words, self._coding(leaf, segment), tolls)
        if columns:
            rank += _literal.transposed(Choice(self._node, 0.0), columns, leaf.extent, self._settings).rank
        return [] if lengths is None else [_Dealing(columns, segment, rank, lengths)]

    def _learn_pairs(self, leaf: Leaf, segment: int) -> list[_Dealing]:
        """The dealings by rows and columns, with classes of rows and without."""
        words, tolls = self._some(self._part, leaf, 0), _literal.tolls(self._settings)
        asked = self._settings.pairs * self._part.nbytes
        coding = self._coding(leaf, segment)._replace(asked=asked)
        return [
            _Dealing(0, segment, rank + asked, pairs.lengths, pairs, asked)
            for rank, pairs in _classes.learn_pairs(words, coding, tolls)
        ]

    def _reckoned(self, part: Part, dealings: dict[int, list[_Dealing]]) -> float:
        ranks = (
            min([choice.rank, *(each.rank for each in dealings.get(index, []))])
            for index, choice in self._choices.items()
        )
        return _entries(part) + sum(ranks)

    def _made(self, part: Part, dealings: dict[int, list[_Dealing]]) -> Layout:
        leaves = {}
        for index, choice in self._choices.items():
            ways: _Candidates[Dealt] = [(choice.rank, partial(Dealt, choice, choice.rank))]
            ways += [(each.rank, partial(self._dealt, part, index, each)) for each in dealings.get(index, [])]
            leaves[index] = _least(ways)
        return Layout(part, leaves, _entries(part) + sum(leaf.rank for leaf in leaves.values()))

    def _dealt(self, part: Part, index: int, dealing: _Dealing) -> Dealt:
        leaf = self._leaves[index].on(part.block)
        classing = self._classings.get(dealing)
        if classing is None:
            words = words_of(part, self._node, leaf, dealing.columns)
            classing = _classes.assign(words, leaf.bits, dealing.segment, dealing.lengths, dealing.pairs)
            self._classings[dealing] = classing
        choice = dealing.choice(leaf, classing.hists, self._settings)
        return Dealt(choice, choice.rank + dealing.asked, classing, dealing.head)


def _entries(part: Part) -> int:
    return BLOCK_ENTRY_BYTES * Extent(part.count, part.block).blocks


def _classable(leaf: Leaf, choice: Choice, whole: bool) -> bool:
    """Whether several tables are looked at for the leaf's words.

    Words that are not cut may show only by their places that they are worth coding.
    """
    if leaf.extent.count < CLASSED_WORDS or leaf.place.scarce:
        return False
    match choice.node:
        case Lit(Rans() | Huffman() | Tunstall()):
            return True
        case Lit(Raw()):
            return whole and leaf.narrow
    return False
