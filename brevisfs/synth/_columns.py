"""Columns: blocks laid out as tiles, so that words that lie under one another become neighbours.

What the words of a column share (a channel's scale, the place in a record) tells more of them than
what those of a row do. Column by column each is a segment of a literal, which classes then suit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np

from brevisfs._native import _plan
from brevisfs.synth._sample import cuts
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
    sizes = [size for size in range(1, LONGEST_RECORD + 1) if size == 1 or (long and row % size == 0)]
    # A multiple of a record is one too: so the widest are counted, and without gain there is none below.
    widest = [size for size in sizes if not any(of % size == 0 for of in sizes if of > size)]
    seen = _by_size(part, GLANCE_BYTES, {size: [1, size] for size in widest})
    if all(seen[size] >= (1 - RECORD_GAIN / 2) * seen[1] for size in widest):
        return 1, seen[1]
    seen = _by_size(part, RUN_BYTES, {wide: [size for size in sizes if wide % size == 0] for wide in widest})
    best = 1
    for size in sizes:
        if seen[size] < (1 - RECORD_GAIN) * seen[best]:
            best = size
    return best, seen[best]


def _by_size(part: Part, length: int, wanted: dict[int, list[int]]) -> dict[int, float]:
    """Bits a byte by size of a record, of runs of some length; wanted are some that divide each widest."""
    length = min(part.count, length)
    starts = cuts(part.count, length, RECORD_RUNS)
    words = np.concatenate([part.words(at, at + length) for at in starts])
    found: dict[int, float] = {}
    for widest, sizes in wanted.items():
        bits = _plan.place_bits(words, starts, widest, sizes)
        found |= zip(sizes, (each / len(words) for each in bits), strict=True)
    return found
