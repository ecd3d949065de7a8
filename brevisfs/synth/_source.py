"""Where a section's bytes come from, and the words of a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from brevisfs._native import Buffer
from brevisfs.synth._sample import Sample, Words, container, cuts, from_flat

RUNS, SHORTEST_RUN, LONGEST_RUN, RUN_SHARE = 64, 1 << 10, 1 << 12, 1 << 11
"""A sample is so many runs, each a share of the words if not too short or long; or all words if no more."""

LONG_RUN = 1 << 14
"""Length of the runs where words recur at a distance."""

WHOLE_BYTES = 1 << 25
"""Streams up to this long are read once for all that is asked of them."""

PASS_WORDS = 1 << 19
"""Words held at a time in a pass over all of a stream: a multiple of what any chunk has."""


def block_words(bits: int, count: int, usual: int, most: int | None = None) -> int:
    """Words a block: `most` where given, fewer where there are fewer words.

    As a rule `usual`, or as many as make up two bytes for each of them.
    """
    most = most or max(usual, 16 * usual // bits // 64 * 64)
    return min(most, -(-count // 64) * 64, 1 << 20)


class Source(Protocol):
    """The flat bytes of a section."""

    @property
    def nbytes(self) -> int:
        """How many there are."""

    def read(self, lo: int, hi: int) -> Buffer:
        """Bytes `lo` to `hi`, all of them."""


class Memory:
    """A source that lies in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = data if isinstance(data, bytes) else memoryview(data).cast("B")

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return len(self._data)

    def read(self, lo: int, hi: int) -> Buffer:
        """Bytes `lo` to `hi`, not copied."""
        return self._data[lo:hi]


@dataclass(frozen=True, slots=True)
class Part:
    """`count` words of `bits` bits of a source from word `start` on, which begins a byte."""

    source: Source
    bits: int
    count: int
    block: int
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes the words take."""
        return (self.count * self.bits + 7) // 8

    def part(self, start: int, count: int) -> Part:
        """A part of this part."""
        return Part(self.source, self.bits, count, self.block, self.start + start)

    def read(self, lo: int, hi: int) -> Buffer:
        """Flat bytes `lo` to `hi` of the part."""
        first = self.start * self.bits // 8
        return self.source.read(first + lo, first + hi)

    def words(self, lo: int, hi: int) -> Words:
        """Words `lo` to `hi`; lo must begin a byte."""
        data = self.read(lo * self.bits // 8, (hi * self.bits + 7) // 8)
        return from_flat(data, self.bits)[: hi - lo]

    def block_bytes(self, index: int, many: int = 1) -> Buffer:
        """The flat bytes of up to `many` blocks from block `index` on."""
        step = self.block * self.bits // 8
        return self.read(index * step, min(self.nbytes, (index + many) * step))

    def passes(self) -> Iterator[Words]:
        """All the words in order, some at a time."""
        for lo in range(0, self.count, PASS_WORDS):
            yield self.words(lo, min(self.count, lo + PASS_WORDS))

    def sample(self, long: bool) -> Sample:
        """All the words if there are few, else runs of them from all over."""
        length = LONG_RUN if long else min(max(self.count // RUN_SHARE, SHORTEST_RUN), LONGEST_RUN) // 8 * 8
        return self.runs(RUNS, length)

    def runs(self, most: int, length: int) -> Sample:
        """Up to `most` runs of `length` words, a multiple of 8, or all words if they are no more."""
        if self.count <= most * length:
            return Sample(self.bits, self.count, self.block, self.words(0, self.count), (self.count,))
        starts = cuts(self.count, length, most)
        if self.nbytes <= WHOLE_BYTES and 8 * container(self.bits).itemsize == self.bits:
            words = self.words(0, self.count)
            runs = [words[at : at + length] for at in starts]
        else:
            runs = [self.words(at, at + length) for at in starts]
        ends = tuple(range(length, most * length + 1, length))
        return Sample(self.bits, self.count, self.block, np.concatenate(runs), ends)
