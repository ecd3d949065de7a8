"""Tables for kinds of segments: the rows of a matrix differ in scale, and a table of its own fits each.

The segments of a coded leaf (its rows, the columns of its tiles, or runs of some hundred words) are
dealt to a few classes, each with its table, so that together they take the fewest bits. Classes are
learnt on some of the blocks (native/plan_classes.c); then every segment takes the class that suits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import _plan
from brevisfs._native._plan import Pairs

Symbols = NDArray[np.uint8]
"""Words narrow enough to be coded."""

Placed = tuple[int, Symbols]
"""Neighbouring words of a stream, and the position of the first."""

SHORTEST, LONGEST = 256, 4096
"""Words a segment: shorter ones tell too little of their class, longer ones mix what differs."""

LEARN_SEGMENTS = 768

PAIRS_WORDS = 1 << 18
"""Words that classes of segments and of the places in them are learnt from: each goes through many hands."""


@dataclass(frozen=True, slots=True)
class Classing:
    """Class of each segment of `segment` words, and the histogram of each table: (tables, 2^bits)."""

    segment: int
    classes: NDArray[np.uint8]
    hists: NDArray[np.uint64]


def segment_words(shape: tuple[int, ...], count: int) -> int:
    """Words a segment: a row, several short ones, or an even part of a long one."""
    inner = (prod(shape[axis:]) for axis in range(len(shape) - 1, 0, -1))
    row = next((words for words in inner if 16 <= words <= count), 1024)
    if row < SHORTEST:
        return row * -(-SHORTEST // row)
    return -(-row // -(-row // LONGEST))


def learn(
    words: Iterable[Placed], coding: _plan.Coding, tolls: _plan.Tolls
) -> tuple[float, NDArray[np.int16] | None]:
    """The least rank that classes reach on some of the words, and their code lengths; None if one is best."""
    reached, lengths = _plan.learn(_sampled(words, coding.segment), coding, tolls)
    return reached, lengths if len(lengths) > 1 else None


def learn_pairs(
    words: Iterable[Placed], coding: _plan.Coding, tolls: _plan.Tolls
) -> list[tuple[float, Pairs]]:
    """Classes of segments and of the places in them, and the ranks that they reach on some of the words."""
    segments = _sampled(words, coding.segment)
    some = np.ascontiguousarray(segments[:: -(-segments.size // PAIRS_WORDS)])
    return _plan.learn_pairs(some, coding, tolls)


def _sampled(words: Iterable[Placed], segment: int) -> Symbols:
    """Segments, one a row, evenly spread over those there are."""
    segments = np.concatenate([whole.reshape(-1, segment) for whole in _segments(words, segment)])
    return np.ascontiguousarray(segments[:: -(-len(segments) // LEARN_SEGMENTS)])


def assign(
    words: Iterable[Placed], bits: int, segment: int, lengths: NDArray[np.int16], pairs: Pairs | None = None
) -> Classing:
    """Every segment of a stream, all of which is given, in the class whose code lengths suit it best."""
    hists = np.zeros((len(lengths), 1 << bits), np.uint64)
    of_tables = hists if pairs is None else np.zeros((pairs.tables, 1 << bits), np.uint64)
    classes = []
    for some in _segments(words, segment, ragged=True):
        classes.append(_plan.assign(some, segment, bits, lengths, hists))
        if pairs is not None:
            _plan.count_pairs(some, segment, bits, classes[-1], pairs, of_tables)
    return Classing(segment, np.concatenate(classes), of_tables)


def _segments(words: Iterable[Placed], segment: int, ragged: bool = False) -> Iterator[Symbols]:
    """The words of one or more whole segments at a time; if `ragged`, what is left at the end too."""
    at = 0
    left: Symbols | None = None
    for place, more in words:
        if left is None or place != at + len(left):
            skipped = -place % segment
            at, left = place + skipped, more[skipped:]
        elif len(left):
            left = np.concatenate((left, more))
        else:
            left = more
        whole = len(left) // segment * segment
        if whole:
            yield left[:whole]
            at, left = at + whole, left[whole:]
    if ragged and left is not None and len(left):
        yield left
