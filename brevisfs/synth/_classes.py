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

LEARN_SEGMENTS = 1024

COARSE_BITS = 6
"""Leading bits of a word that tell its segment's class."""

ROUNDS = 6


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
    least, best = np.inf, classes
    for hists, became in _merged(_grouped(segments, classes, bits, int(classes.max()) + 1)):
        if len(hists) <= most:
            reached = rank(hists)
            if reached < least:
                least, best = reached, became[classes]
    return least, _lengths_of(best, rows) if best.any() else None


def _merged(hists: Histogram) -> Iterator[tuple[Histogram, NDArray[np.intp]]]:
    """The histograms of fewer and fewer classes, and which of them each of the first became part of."""
    became = np.arange(len(hists))
    while True:
        yield hists, became
        if len(hists) == 1:
            return
        if len(hists) == len(became):
            apart = np.array([_apart(hists, i) for i in range(len(hists))])
        kept, gone = sorted(divmod(int(np.argmin(apart)), len(hists)))
        became = np.where(became == gone, kept, became)
        became -= became > gone
        hists = np.delete(hists, gone, axis=0) + (np.arange(len(hists) - 1) == kept)[:, None] * hists[gone]
        apart = np.delete(np.delete(apart, gone, axis=0), gone, axis=1)
        apart[kept] = apart[:, kept] = _apart(hists, kept)


def _apart(hists: Histogram, one: int) -> NDArray[np.float64]:
    """Bits more that the words of a class take together with those of each other one."""
    more = _information(hists + hists[one]) - _information(hists) - _information(hists[one : one + 1])
    more[one] = np.inf
    return more


def _information(hists: Histogram) -> NDArray[np.float64]:
    """Bits of the words of each histogram, in whole numbers."""
    counts = hists.astype(np.float64)
    totals = counts.sum(axis=1)
    terms = (counts * np.log2(np.maximum(counts, 1.0))).sum(axis=1)
    bits: NDArray[np.float64] = np.rint(totals * np.log2(np.maximum(totals, 1.0)) - terms)
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
    nearest: NDArray[np.intp] = np.argmin(rows @ lengths.T, axis=1)
    return nearest


def _lengths_of(classes: NDArray[np.intp], rows: Rows) -> Rows:
    """Code lengths that suit the rows of each class."""
    member = (classes == np.arange(int(classes.max()) + 1)[:, None]).astype(np.float64)
    return _code_lengths(member @ rows)


def _k_means(rows: Rows, size: int) -> NDArray[np.intp]:
    """Up to `size` classes that suit the rows, none empty."""
    # Rows that a common table codes equally well are alike enough to begin with.
    common = rows @ _code_lengths(rows.sum(axis=0, keepdims=True))[0]
    classes = np.empty(len(rows), np.intp)
    classes[np.argsort(common, kind="stable")] = np.arange(len(rows)) * size // len(rows)
    for _ in range(ROUNDS):
        classes = _nearest(rows, _lengths_of(classes, rows))
        classes = np.unique(classes, return_inverse=True)[1].reshape(-1)
    return classes
