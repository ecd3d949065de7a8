"""Structure that only all of the data shows: one word, periods, runs that are quieter than the rest.

What is found here holds for every word: a sample only saves the passes that would find nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import _plan
from brevisfs._native._plan import CHUNK
from brevisfs.synth._sample import Words, distinct
from brevisfs.synth._source import PASS_WORDS, Part

MAX_PERIOD = 1 << 20
"""Words of the longest period a Repeat may have."""

PATTERN_WORDS, MOST_RECURRENCES = 8, 8
"""The first words, which come again after a period, and how often they are looked for."""

MAX_CHUNKS = 1 << 17
MAX_RUNS = 7
LEVELS = 6
RUN_BYTES = 512
"""What a run must save to be a part of a Concat: about what tables of its own cost."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Bits set in any, and in all, words of each chunk of `chunk` words, the last ragged."""

    bits: int
    chunk: int
    any_set: Words
    all_set: Words

    @property
    def constant(self) -> int | None:
        """The word that all words are, if so."""
        low = int(np.bitwise_and.reduce(self.all_set))
        return low if low == int(np.bitwise_or.reduce(self.any_set)) else None

    @property
    def still(self) -> NDArray[np.bool_]:
        """The chunks whose words are equal."""
        return np.equal(self.any_set, self.all_set)

    def zeros(self) -> NDArray[np.int64]:
        """For each chunk, how many low bits are 0 in all its words."""
        words = self.any_set.astype(np.uint64)
        lowest = words & (~words + np.uint64(1))
        places = np.log2(np.where(lowest == 0, 1, lowest).astype(np.float64)).astype(np.int64)
        return np.where(words == 0, self.bits, places)


def survey(part: Part) -> Survey:
    """One pass over all of the words; they are whole bytes."""
    chunk = CHUNK
    while part.count > chunk * MAX_CHUNKS and chunk < PASS_WORDS:
        chunk *= 2
    any_set, all_set = [], []
    for words in part.passes():
        some, every = _plan.survey(words, chunk)
        any_set.append(some)
        all_set.append(every)
    return Survey(part.bits, chunk, np.concatenate(any_set), np.concatenate(all_set))


def runs(part: Part, found: Survey) -> list[int]:
    """Lengths of neighbouring parts to be told apart because some are much quieter; [] if none are.

    A part is quiet if its words are all one, or have a number of zero low bits that others do not have.
    """
    if (found.any_set & found.any_set.dtype.type(1)).all() and not found.still.any():
        # No chunk is quiet in any way: so are the weights of most tensors.
        return []
    zeros = found.zeros()
    floor = int(zeros.min())
    levels, chunks = distinct(np.where(found.still, found.bits, zeros))
    best: list[tuple[int, int]] = []
    most = 0
    for level in levels[np.argsort(-chunks, kind="stable")].tolist()[:LEVELS]:
        if level > floor + 1:
            kept = _quiet_runs(part, found, found.still if level == found.bits else zeros >= level, level)
            saved = sum(last - first for first, last in kept) * (level - floor)
            if saved > most:
                best, most = kept, saved
    edges = sorted({0, part.count, *(edge for run in best for edge in run)})
    lengths = [after - before for before, after in pairwise(edges)]
    return lengths if len(lengths) > 1 else []


def _quiet_runs(part: Part, found: Survey, marked: NDArray[np.bool_], level: int) -> list[tuple[int, int]]:
    """First and last + 1 word of the longest runs of marked chunks, which are quiet to `level`."""
    label = np.cumsum(np.concatenate(([0], marked[1:] != marked[:-1])))
    if level == found.bits:
        label += np.cumsum(np.concatenate(([0], found.any_set[1:] != found.any_set[:-1])))
    starts = np.flatnonzero(np.concatenate(([True], label[1:] != label[:-1])))
    ends = np.append(starts[1:], len(marked))
    longest = sorted(
        ((int(end - start), int(start)) for start, end in zip(starts, ends, strict=True) if marked[start]),
        key=lambda run: (-run[0], run[1]),
    )
    worth = max(1, RUN_BYTES * 8 // (level * found.chunk))
    kept = sorted(run[::-1] for run in longest[:MAX_RUNS] if run[0] >= worth)
    return [_exact(part, found, level, start, start + length) for start, length in kept]


def _exact(part: Part, found: Survey, level: int, first: int, last: int) -> tuple[int, int]:
    """The run of chunks `first` to `last`, grown by the words beside it that are as quiet."""
    mask = (1 << level) - 1
    word = int(found.any_set[first]) & mask
    size = found.chunk
    begin, end = first * size, min(part.count, last * size)

    def differs(lo: int, hi: int) -> NDArray[np.bool_]:
        words = part.words(lo, hi)
        different: NDArray[np.bool_] = np.not_equal(words & words.dtype.type(mask), words.dtype.type(word))
        return different

    if begin:
        other = np.flatnonzero(differs(begin - size, begin))
        begin = begin - size + int(other[-1]) + 1 if len(other) else begin - size
    if end < part.count:
        stop = min(part.count, end + size)
        other = np.flatnonzero(differs(end, stop))
        end = end + int(other[0]) if len(other) else stop
    return begin, end


def period(part: Part, shape: tuple[int, ...]) -> int | None:
    """The shortest period found that divides the stream and that all the words keep, if any."""
    pattern = min(PATTERN_WORDS, (part.count + 1) // 2)
    words = part.words(0, min(part.count // 2, MAX_PERIOD) + pattern)
    candidates = set(_plan.recurrences(words, pattern, MOST_RECURRENCES))
    if len(candidates) == MOST_RECURRENCES:
        # They may come again later too: where is a guess.
        candidates |= {part.count // times for times in (2, 3, 4, 8, 16, 32, 64)}
        candidates |= {prod(shape[axis:]) for axis in range(1, len(shape))}
    for length in sorted(candidates):
        fits = 0 < length <= min(MAX_PERIOD, part.count // 2) and part.count % length == 0
        if fits and length * part.bits % 8 == 0 and _keeps(part, length):
            return length
    return None


def _keeps(part: Part, length: int) -> bool:
    """Whether each word equals the one `length` before it."""
    step = 64
    lo = length
    while lo < part.count:
        hi = min(part.count, lo + step)
        if not np.array_equal(part.words(lo, hi), part.words(lo - length, hi - length)):
            return False
        lo, step = hi, PASS_WORDS
    return True
