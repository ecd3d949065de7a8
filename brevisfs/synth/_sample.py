"""The words of a hole, or a sample of them, and what Map and Scan make of them.

A hole's child words are computed here for samples only; passes over all of the data are native.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Buffer, _plan
from brevisfs._native._plan import CHUNK
from brevisfs.dsl import Add, BitReverse, Function, Gray, RotR, ScanKind, Xor, ZigZag

__all__ = ["CHUNK"]

Words = NDArray[np.unsignedinteger[Any]]

Step = Function | ScanKind
"""A Map's function or a Scan's kind."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Runs of neighbouring words of a stream of `count` words of `bits` bits on blocks of `block`.

    `words` are those of all runs, one of which ends at each of `ends`.
    """

    bits: int
    count: int
    block: int
    words: Words
    ends: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the runs begin."""
        return (0, *self.ends[:-1])

    @property
    def runs(self) -> list[Words]:
        """The words of each run."""
        return [self.words[start:end] for start, end in zip(self.starts, self.ends, strict=True)]

    @cached_property
    def varying(self) -> int:
        """The bits that are not the same in all the words sampled."""
        any_set, all_set = _plan.survey(self.words, len(self.words))
        return int(any_set[0]) & ~int(all_set[0])

    @property
    def blocks(self) -> int:
        """Blocks of the whole stream."""
        return -(-self.count // self.block)

    def undone(self, step: Step) -> Sample:
        """The child's words under a Map or Scan; for a Scan the stream has two words or more."""
        words = undo(step, self.words, self.bits)
        if not isinstance(step, str):
            return replace(self, words=words)
        if len(self.ends) > 1:
            words = np.delete(words, np.array(self.ends[:-1]) - 1)
        lengths = [end - start - 1 for start, end in zip(self.starts, self.ends, strict=True)]
        ends = tuple(accumulate(length for length in lengths if length))
        return Sample(self.bits, self.count - 1, self.block, words, ends)

    def head(self, most: int, length: int) -> Sample:
        """A smaller sample: up to `most` runs of up to `length` words."""
        if len(self.ends) >= most:
            spans = [(self.ends[i - 1] if i else 0, self.ends[i]) for i in spread(len(self.ends), most)]
            runs = [self.words[start : min(end, start + length)] for start, end in spans]
        else:
            runs = [run[at : at + length] for run in self.runs for at in cuts(len(run), length, most)]
        words = runs[0] if len(runs) == 1 else np.concatenate(runs)
        return replace(self, words=words, ends=tuple(accumulate(map(len, runs))))


def spread(size: int, wanted: int) -> list[int]:
    """Up to `wanted` of the numbers below `size`, evenly spread: the middles of equal parts."""
    wanted = min(size, wanted)
    return [(2 * i + 1) * size // (2 * wanted) for i in range(wanted)]


def cuts(size: int, length: int, wanted: int) -> list[int]:
    """Where up to `wanted` runs of `length`, apart from each other, begin in `size` words."""
    return [i * length for i in spread(max(1, size // length), wanted)]


def distinct(words: Words) -> tuple[Words, NDArray[np.int64]]:
    """The different words, ascending, and how many there are of each.

    numpy's own `unique` takes longer for a few words, and to load.
    """
    ordered = np.sort(words)
    changes = np.empty(len(words), np.bool_)
    changes[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    first = np.flatnonzero(changes)
    counts = np.empty(len(first), np.int64)
    np.subtract(first[1:], first[:-1], out=counts[:-1])
    counts[-1:] = len(words) - first[-1:]
    return ordered[first], counts


_CONTAINERS = [np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if bits <= 8 * size)}") for bits in range(65)]


def container(bits: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds a word of `bits` bits."""
    return _CONTAINERS[bits]


def from_flat(data: Buffer, bits: int) -> Words:
    """The words of flat bytes that begin and end with a word."""
    kind = container(bits)
    if bits == 8 * kind.itemsize:
        return np.frombuffer(data, kind)
    count = 8 * len(data) // bits
    if bits % 8 == 0:
        padded = np.zeros((count, kind.itemsize), np.uint8)
        padded[:, : bits // 8] = np.frombuffer(data, np.uint8)[: count * bits // 8].reshape(count, -1)
        return padded.view(kind).reshape(-1)
    every = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    planes = every[: count * bits].reshape(count, bits)
    words = np.zeros(count, kind)
    for place in range(bits):
        words |= planes[:, place].astype(kind) << kind.type(place)
    return words


def to_flat(words: Words, bits: int) -> bytes:
    """The flat form of words that end with a byte."""
    kind = container(bits)
    if bits == 8 * kind.itemsize:
        return words.astype(kind).tobytes()
    planes = np.empty((len(words), bits), np.uint8)
    for place in range(bits):
        planes[:, place] = (words >> words.dtype.type(place)) & words.dtype.type(1)
    return np.packbits(planes.reshape(-1), bitorder="little").tobytes()


def undoing(step: Step) -> tuple[int, int]:
    """The number by which native planning knows the step, and its word."""
    match step:
        case Xor(word):
            return 0, word
        case Add(word):
            return 1, word
        case ZigZag():
            return 2, 0
        case Gray():
            return 3, 0
        case BitReverse():
            return 4, 0
        case RotR(places):
            return 5, places
        case "xor":
            return -1, 0
        case _:
            return -2, 0


def undo(step: Step, words: Words, bits: int) -> Words:
    """The child's words under a Map or Scan: for a Scan one fewer than the words."""
    return _plan.undo(words, bits, *undoing(step))
