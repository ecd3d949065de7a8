"""Where a section's bytes come from, and the words of a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from brevisfs._native import Buffer
from brevisfs.synth._sample import Sample, Words, cuts, from_flat

SAMPLE_WORDS = 1 << 20
"""Streams up to this long are looked at whole."""

PIECE_WORDS = 1 << 14
"""Length of one run of a sample of a longer stream."""

PASS_WORDS = 1 << 19
"""Words held at a time in a pass over all of a stream: a multiple of what any chunk has."""


BLOCK_BYTES = 1 << 17
BLOCK_WORDS = 1 << 16
"""A block has this many words, or more if its words are so narrow that it would not have BLOCK_BYTES."""


def block_words(bits: int, count: int, most: int | None = None) -> int:
    """Words a block: `most` where given, fewer where there are fewer words."""
    most = most or max(BLOCK_WORDS, 8 * BLOCK_BYTES // bits // 64 * 64)
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

    def sample(self) -> Sample:
        """All the words if there are few, else runs of them from all over."""
        if self.count <= SAMPLE_WORDS:
            return Sample(self.bits, self.count, self.block, (self.words(0, self.count),))
        return self.runs(SAMPLE_WORDS // PIECE_WORDS, PIECE_WORDS)

    def runs(self, wanted: int, length: int) -> Sample:
        """Up to `wanted` runs of `length` words, a multiple of 8, from all over."""
        starts = cuts(self.count, length, wanted)
        pieces = [self.words(at, min(self.count, at + length)) for at in starts]
        return Sample(self.bits, self.count, self.block, tuple(pieces))
