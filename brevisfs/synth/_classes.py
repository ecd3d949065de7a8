"""Tables for kinds of segments: the rows of a matrix differ in scale, and a table of its own fits each.

The segments of a coded leaf (its rows, the columns of its tiles, or runs of some hundred words) are
dealt to a few classes, each with its table, so that together they take the fewest bits: k-means
whose distance is code length; then the two classes most alike become one, again and again, as long
as the table saved pays for that. Classes are learnt on some of the blocks; then every segment takes
the class that suits it.

Code lengths are whole 1/256 bits: sums of such are exact in floating point, in whatever order a
machine adds them up, so the same words have the same classes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from brevisfs.synth._costs import Histogram
from brevisfs.synth._sample import Words

Placed = tuple[int, Words]
"""Neighbouring words of a stream, and the position of the first."""

Rows = NDArray[np.float64]
"""A histogram a row, in whole numbers."""

SHORTEST, LONGEST = 256, 4096
"""Words a segment: shorter ones tell too little of their class, longer ones mix what differs."""

LEARN_SEGMENTS = 768

COARSE_BITS = 6
"""Leading bits of a word that tell its segment's class."""

ROUNDS = 4
FEW = 4
"""Up to this many classes every number of them is ranked, above it the even ones."""

PRODUCT = 1 << 17

Kind = TypeVar("Kind", np.float64, np.int64)


@dataclass(frozen=True, slots=True)
class Classing:
    """Class of each segment of `segment` words, and the histogram of each class: (classes, 2^bits)."""

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
    words: Iterable[Placed], bits: int, segment: int, most: int, rank: Callable[[Histogram], float]
) -> tuple[float, Rows | None]:
    """The least rank that up to `most` classes reach on some of the words, and their code lengths.

    `rank` tells what coding the words of classes with these histograms costs: the less the better.
    The code lengths are None if one class is best.
    """
    segments = np.concatenate([whole.reshape(-1, segment) for whole in _segments(words, segment)])
    segments = segments[:: -(-len(segments) // LEARN_SEGMENTS)]
    rows = _rows(segments, bits)
    classes = _k_means(rows, min(2 * most, len(rows)))
    hists = _grouped(segments, classes, bits, int(classes.max()) + 1)
    least, best = np.inf, classes
    for became in _mergings(_members(classes, rows)):
        size = int(became.max()) + 1
        if size <= most and (size <= FEW or size % 2 == 0):
            reached = rank(_members(became, hists))
            if reached < least:
                least, best = reached, became[classes]
    return least, _code_lengths(_members(best, rows)) if best.any() else None


def _mergings(members: Rows) -> Iterator[NDArray[np.intp]]:
    """Which of fewer and fewer classes each one becomes part of: the two most alike are one next."""
    became = np.arange(len(members))
    alone = _information(members)
    apart = np.array([_information(members + member) for member in members]) - alone - alone[:, None]
    np.fill_diagonal(apart, np.inf)
    yield became
    for _ in range(len(members) - 1):
        kept, gone = sorted(divmod(int(np.argmin(apart)), len(members)))
        became = np.where(became == gone, kept, became)
        apart[gone] = apart[:, gone] = np.inf
        members[kept] += members[gone]
        alone[kept] = _information(members[kept])
        more = _information(members + members[kept]) - alone - alone[kept]
        others = np.isfinite(apart[kept])
        apart[kept, others] = apart[others, kept] = more[others]
        yield _numbered(became)


def _information(hists: Rows) -> Rows:
    """Bits of the words of each histogram, the last axis, in whole numbers."""
    totals = hists.sum(axis=-1)
    terms = (hists * np.log2(np.maximum(hists, 1.0))).sum(axis=-1)
    bits: Rows = np.rint(totals * np.log2(np.maximum(totals, 1.0)) - terms)
    return bits


def assign(words: Iterable[Placed], bits: int, segment: int, lengths: Rows) -> Classing:
    """Every segment of a stream, all of which is given, in the class whose code lengths suit it best."""
    classes = []
    hists = np.zeros((len(lengths), 1 << bits), np.int64)
    for some in _segments(words, segment, ragged=True):
        # The last segment may be short: then it is alone.
        segments = some.reshape(-1, min(segment, len(some)))
        classes.append(_nearest(_rows(segments, bits), lengths))
        hists += _grouped(segments, classes[-1], bits, len(lengths))
    return Classing(segment, np.concatenate(classes).astype(np.uint8), hists.astype(np.uint64))


def _segments(words: Iterable[Placed], segment: int, ragged: bool = False) -> Iterator[Words]:
    """The words of one or more whole segments at a time; if `ragged`, what is left at the end too."""
    at = 0
    left: Words | None = None
    for place, more in words:
        if left is None or place != at + len(left):
            skipped = -place % segment
            at, left = place + skipped, more[skipped:]
        else:
            left = np.concatenate((left, more))
        whole = len(left) // segment * segment
        if whole:
            yield left[:whole]
            at, left = at + whole, left[whole:]
    if ragged and left is not None and len(left):
        yield left


def _rows(segments: Words, bits: int) -> Rows:
    """A histogram of the leading bits of the words for each segment, a row of `segments`."""
    coarse = min(bits, COARSE_BITS)
    places = segments >> segments.dtype.type(bits - coarse) | (np.arange(len(segments)) << coarse)[:, None]
    counts = np.bincount(places.reshape(-1), minlength=len(segments) << coarse)
    return counts.reshape(len(segments), 1 << coarse).astype(np.float64)


def _grouped(segments: Words, classes: NDArray[np.intp], bits: int, size: int) -> Histogram:
    """The histogram of the words of each class."""
    places = segments | (classes << bits)[:, None]
    return np.bincount(places.reshape(-1), minlength=size << bits).reshape(size, 1 << bits)


def _code_lengths(hists: Rows) -> Rows:
    """Bits of each symbol in each class, those a class never had too."""
    counts = hists + 0.02
    lengths: Rows = np.rint(256 * (np.log2(counts.sum(axis=1, keepdims=True)) - np.log2(counts)))
    return lengths


def _nearest(rows: Rows, lengths: Rows) -> NDArray[np.intp]:
    # In parts so small that no numerical library wakes threads for them: that takes a hundred times longer.
    step = max(1, PRODUCT // lengths.size)
    parts = [rows[at : at + step] @ lengths.T for at in range(0, len(rows), step)]
    return np.concatenate([np.argmin(part, axis=1) for part in parts])


def _members(classes: NDArray[np.intp], rows: NDArray[Kind]) -> NDArray[Kind]:
    """The sum of the rows of each class; no class is empty."""
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(int(classes.max()) + 1))
    sums: NDArray[Kind] = np.add.reduceat(rows[order], starts, axis=0)
    return sums


def _numbered(classes: NDArray[np.intp]) -> NDArray[np.intp]:
    """The classes in the same order without numbers that none has."""
    return (np.cumsum(np.bincount(classes) > 0) - 1)[classes]


def _k_means(rows: Rows, size: int) -> NDArray[np.intp]:
    """Up to `size` classes that suit the rows, none empty."""
    # Rows that a common table codes equally well are alike enough to begin with.
    common = (rows * _code_lengths(rows.sum(axis=0, keepdims=True))).sum(axis=1)
    classes = np.empty(len(rows), np.intp)
    classes[np.argsort(common, kind="stable")] = np.arange(len(rows)) * size // len(rows)
    for _ in range(ROUNDS):
        classes = _numbered(_nearest(rows, _code_lengths(_members(classes, rows))))
    return classes
