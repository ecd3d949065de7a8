"""Columns: blocks laid out as tiles, so that words that lie under one another become neighbours.

What the words of a column share (a channel's scale, the place in a record) tells more of them than
what those of a row do. Column by column each is a segment of a literal, which classes then suit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, log, prod

import numpy as np

from brevisfs._native import _plan
from brevisfs._native._plan import Counts
from brevisfs.synth._sample import Words, cuts
from brevisfs.synth._source import Part

MOST_COLUMNS = 4096
FEWEST_ROWS, WANTED_ROWS = 32, 128
LARGEST_TILE = 1 << 17
"""Columns are as long as a block of the usual size makes them, and longer if that is too short."""

LONGEST_RECORD = 64
RECORD_BYTES = 1 << 14
RECORD_RUNS, GLANCE_BYTES, RUN_BYTES = 8, 1 << 12, 1 << 14
RECORD_GAIN = 0.005
"""How much simpler bytes must look by their place in a record, or in a longer one, to be taken as such. At a
glance half as much must show."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`columns` words a row, in blocks of `block` words whose columns are `rows` long."""

    columns: int
    block: int
    rows: int


@lru_cache
def tile(columns: int, count: int, block: int) -> Tile | None:
    """A tile of about `block` words for a stream of `count` words, if it can have so many columns.

    The block left at the end is as short as can be: there segments go over the ends of columns.
    """
    rows, ragged = divmod(count, columns)
    wanted = min(max(block // columns, WANTED_ROWS), LARGEST_TILE // columns)
    if ragged or columns < 2 or min(rows, wanted) < FEWEST_ROWS:
        return None
    if rows <= wanted * 3 // 2:
        return Tile(columns, -(-count // 64) * 64, rows)
    step = 64 // gcd(64, columns)
    sizes = range(-(-max(wanted // 2, FEWEST_ROWS) // step) * step, wanted * 3 // 2 + 1, step)
    if not sizes:
        return None
    best = min(sizes, key=lambda size: (rows % size, abs(size - wanted)))
    return Tile(columns, best * columns, best)


def tiles_of(part: Part, shape: tuple[int, ...]) -> list[Tile]:
    """The tiles whose rows are those of a tensor of `shape`, or of its innermost parts."""
    if prod(shape) != part.count:
        return []
    widths = {prod(shape[axis:]) for axis in range(1, len(shape))}
    found = (tile(columns, part.count, part.block) for columns in sorted(widths) if columns <= MOST_COLUMNS)
    return [each for each in found if each is not None]


def record(part: Part, shape: tuple[int, ...]) -> tuple[int, float]:
    """Bytes a record that the stream, of bytes, seems made of, and bits a byte by place; 1 if of none."""
    row = shape[-1] if len(shape) > 1 and prod(shape) == part.count else part.count
    long = part.count >= RECORD_BYTES
    sizes = [size for size in range(2, LONGEST_RECORD + 1) if long and row % size == 0]
    # A multiple of a record is one too: so the widest are counted, and without gain there is none below.
    widest = [size for size in sizes if not any(of % size == 0 for of in sizes if of > size)]
    for length, gain in ((GLANCE_BYTES, RECORD_GAIN / 2), (RUN_BYTES, RECORD_GAIN)):
        runs = _runs(part, length)
        words = sum(len(some) for _, some in runs)
        counts = {size: _by_place(runs, size) for size in widest}
        least = _bits_by_place(next(iter(counts.values()), _by_place(runs, 1)), 1, words)
        if all(_bits_by_place(hists, size, words) >= (1 - gain) * least for size, hists in counts.items()):
            return 1, least
    best = 1
    for size in sizes:
        hists = next(hists for multiple, hists in counts.items() if multiple % size == 0)
        bits = _bits_by_place(hists, size, words)
        if bits < (1 - RECORD_GAIN) * least:
            best, least = size, bits
    return best, least


def _runs(part: Part, length: int) -> list[tuple[int, Words]]:
    """Some runs of the words, and where each begins."""
    length = min(part.count, length)
    return [(at, part.words(at, at + length)) for at in cuts(part.count, length, RECORD_RUNS)]


def _by_place(runs: list[tuple[int, Words]], size: int) -> Counts:
    """Bytes by their place in records of `size` bytes."""
    hists = np.zeros((size, 256), np.uint64)
    for at, words in runs:
        _plan.count_places(words, at % size, hists)
    return hists


def _bits_by_place(hists: Counts, size: int, words: int) -> float:
    """Entropy of a byte given its place in records of `size` bytes, from the places in a multiple of that.

    Made up for what a sample of few records misses (Miller and Madow, 1955).
    """
    by_place = hists.reshape(-1, size, 256).sum(axis=0)
    total = _plan.entropy_bits(by_place)
    missed = (np.count_nonzero(by_place) - size) / (2 * log(2))
    return float(total + missed) / words
