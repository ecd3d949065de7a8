"""What planning asks of words, in native code: counts, costs, cuts, classes (native/plan.h).

Words are contiguous arrays of the smallest unsigned type that holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from brevisfs._native import _local
from brevisfs._native._brevis import ffi, lib

Words = npt.NDArray[Any]
Counts = npt.NDArray[np.uint64]
"""Histograms: how often each symbol of some bits occurs, several one above the other."""

Tolls = NewType("Tolls", object)
"""A brv_tolls."""

NODE_BYTES: int = lib.BRV_NODE_BYTES
SYMBOL_BITS: int = lib.BRV_SYMBOL_BITS
CODE_BITS: int = lib.BRV_CODE_BITS
PROBABILITY_BITS: int = lib.BRV_PROBABILITY_BITS
TUNSTALL_BITS: int = lib.BRV_TUNSTALL_BITS
CHUNK: int = lib.BRV_CHUNK
COARSE_BITS: int = lib.BRV_COARSE_BITS


class Way(IntEnum):
    """How a field is completed."""

    CONST = lib.BRV_CONST
    RAW = lib.BRV_RAW
    PACK = lib.BRV_PACK
    SPARSE = lib.BRV_SPARSE
    HUFFMAN = lib.BRV_HUFFMAN
    RANS = lib.BRV_RANS
    TUNSTALL = lib.BRV_TUNSTALL
    ZSTD = lib.BRV_ZSTD


class Completed(NamedTuple):
    """A completed field of bits `low` to `low + width`; `number` and `word` are parameters of the way."""

    way: int
    low: int
    width: int
    number: int
    word: int
    size: float
    toll: float


class Coding(NamedTuple):
    """What classes are ranked by: see brv_coding."""

    width: int
    most: int
    few: int
    many: float
    segment: int
    words: int
    block: int
    asked: float = 0.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Classes of segments and of the places in them, of which each pair has one of `tables` tables.

    `lengths` are the code lengths of each class of segments, by leading bits; `places` has the class of each
    place; `pairs` the tables, shape (classes of segments, classes of places).
    """

    tables: int
    lengths: npt.NDArray[np.int16]
    places: npt.NDArray[np.uint8]
    pairs: npt.NDArray[np.uint8]


def _done(code: int) -> None:
    if code == lib.BRV_NO_MEMORY:
        raise MemoryError("no memory to plan with")
    if code:
        raise ValueError("words or histograms that cannot be planned with")


def _counts(hists: npt.NDArray[Any]) -> Counts:
    return np.ascontiguousarray(hists, np.uint64)


def _completed(choice: Any) -> Completed:
    return Completed(
        choice.way, choice.low, choice.width, choice.number, choice.word, choice.size, choice.toll
    )


TIMED = tuple(name for name, _ in ffi.typeof("brv_tolls").fields if name not in ("toll", "lanes"))
"""What takes time in decoding."""


def tolls(toll: float, lanes: int, nanoseconds: dict[str, float]) -> Tolls:
    """What decoding pays: `toll` bits a word for each of the nanoseconds that something of TIMED takes.

    rANS of long streams has so many `lanes`."""
    return Tolls(ffi.new("brv_tolls *", {"toll": toll, "lanes": lanes, **nanoseconds}))


def count(words: Words, low: int, width: int) -> Counts:
    """How often each value of bits `low` to `low + width`, at most 16, occurs."""
    hist = np.zeros(1 << width, np.uint64)
    code = lib.brv_count(
        ffi.from_buffer(words), len(words), words.itemsize, low, width, ffi.from_buffer("uint64_t[]", hist)
    )
    _done(code)
    return hist


def survey(words: Words, chunk: int) -> tuple[Words, Words]:
    """The bits set in any, and in all, words of each chunk, the last ragged."""
    any_set, all_set = np.empty((2, -(-len(words) // chunk)), words.dtype)
    _done(
        lib.brv_survey(
            ffi.from_buffer(words),
            len(words),
            words.itemsize,
            chunk,
            ffi.from_buffer(any_set),
            ffi.from_buffer(all_set),
        )
    )
    return any_set, all_set


def undo(words: Words, bits: int, function: int, word: int = 0) -> Words:
    """The child's words under a Map of docs/format.md, or a Scan: -1 xor, -2 add."""
    out = np.empty_like(words)
    _done(lib.brv_undo(ffi.from_buffer(words), len(words), bits, function, word, ffi.from_buffer(out)))
    return out[: len(words) - (function < 0)]


def looks(
    words: Words, ends: Sequence[int], bits: int, changes: Sequence[Sequence[tuple[int, int]]]
) -> npt.NDArray[np.float64]:
    """Entropy by byte plane, in bits a word, under each of the changes, of runs that end at `ends`.

    A change is up to two (function, word) of `undo`, the outermost first, one of them with a word.
    """
    planes = np.empty((len(changes), -(-bits // 8)))
    every = ffi.new(
        "brv_change[]",
        [(len(steps), [step[0] for step in steps], sum(step[1] for step in steps)) for steps in changes],
    )
    view = ffi.from_buffer("double[]", planes)
    runs = ffi.new("uint64_t[]", ends)
    _done(lib.brv_looks(ffi.from_buffer(words), runs, len(ends), bits, every, len(changes), view))
    return planes


def by_column(words: npt.NDArray[np.uint8], block: int, columns: int) -> npt.NDArray[np.uint8]:
    """Bytes in the order in which a Transpose has them, block by block."""
    out = np.empty_like(words)
    view = ffi.from_buffer("uint8_t[]", out)
    _done(lib.brv_by_column(ffi.from_buffer("uint8_t[]", words), len(words), block, columns, view))
    return out


def recurring(words: Words, bits: int, reach: int) -> int:
    """How many of the words begin `reach` words, of 64 bits at most, that began before."""
    found = ffi.new("size_t *")
    _done(lib.brv_recurring(ffi.from_buffer(words), len(words), bits, reach, found))
    return int(found[0])


def recurrences(words: Words, pattern: int, most: int) -> list[int]:
    """Where the first `pattern` words come again: the first places."""
    out, found = ffi.new("uint64_t[]", most), ffi.new("size_t *")
    _done(lib.brv_recurrences(ffi.from_buffer(words), len(words), words.itemsize, pattern, out, most, found))
    return list(out[0 : found[0]])


def zstd_bytes(words: Words, bits: int, level: int) -> int:
    """Bytes of the item that a zstd literal, compressed at a level, has of the words."""
    found = ffi.new("size_t *")
    _done(lib.brv_zstd_bytes(_local.scratch, ffi.from_buffer(words), len(words), bits, level, found))
    return int(found[0])


def plane_bits(words: Words, bits: int) -> npt.NDArray[np.float64]:
    """Entropy of all the words' lowest bytes, of those above, and so on, in bits."""
    planes = np.empty(-(-bits // 8))
    _done(lib.brv_plane_bits(ffi.from_buffer(words), len(words), bits, ffi.from_buffer("double[]", planes)))
    return planes


def place_bits(
    words: npt.NDArray[np.uint8], starts: Sequence[int], widest: int, sizes: Sequence[int]
) -> list[float]:
    """Bits of runs of bytes, as many that begin at each of `starts`, told their place in records of a size.

    For each of the sizes, which all divide `widest`.
    """
    bits = ffi.new("double[]", len(sizes))
    view = ffi.from_buffer("uint8_t[]", words)
    runs, length = len(starts), len(words) // len(starts)
    _done(lib.brv_place_bits(view, runs, length, list(starts), widest, list(sizes), len(sizes), bits))
    return list(bits)


def entropy_bits(hists: npt.NDArray[Any]) -> float:
    """Order-0 entropy of all the words counted, each row of its own, in bits."""
    size = hists.shape[-1]
    return float(
        lib.brv_entropy_bits(ffi.from_buffer("uint64_t[]", _counts(hists)), hists.size // size, size)
    )


def huffman_bits(hists: npt.NDArray[Any], max_length: int) -> float:
    """Bits of all the words counted, each row under its best prefix code; infinite without one."""
    total = ffi.new("double *")
    size = hists.shape[-1]
    view = ffi.from_buffer("uint64_t[]", _counts(hists))
    _done(lib.brv_huffman_bits(view, hists.size // size, size, max_length, total))
    return float(total[0])


def huffman_table_bytes(hists: npt.NDArray[Any]) -> int:
    """Size of the tables as stored."""
    size = hists.shape[-1]
    view = ffi.from_buffer("uint64_t[]", _counts(hists))
    return int(lib.brv_huffman_table_bytes(view, hists.size // size, size))


def rans_bits(hist: npt.NDArray[Any], prob_bits: int) -> float:
    """Bits of all the words counted with probabilities rounded to `prob_bits` bits; infinite without such."""
    return float(lib.brv_rans_bits(ffi.from_buffer("uint64_t[]", _counts(hist)), hist.size, prob_bits))


def rans_table_bytes(hist: npt.NDArray[Any], prob_bits: int) -> int:
    """About the size of the table as stored."""
    return int(lib.brv_rans_table_bytes(ffi.from_buffer("uint64_t[]", _counts(hist)), hist.size, prob_bits))


def tunstall_bits(hist: npt.NDArray[Any], codeword_bits: int) -> float:
    """Bits of all the words counted, were they independent, in Tunstall codewords; infinite without such."""
    total = ffi.new("double *")
    view = ffi.from_buffer("uint64_t[]", _counts(hist))
    _done(lib.brv_tunstall_bits(view, hist.size, codeword_bits, total))
    return float(total[0])


def complete(hist: npt.NDArray[Any], width: int, count: int, block: int, tolls: Tolls) -> Completed:
    """The literal or Const that ranks best for `count` words, of which 2^width bins count some."""
    out = ffi.new("brv_choice *")
    view = ffi.from_buffer("uint64_t[]", _counts(hist))
    _done(lib.brv_complete(view, width, count, block, tolls, out))
    return _completed(out)


def coded(
    way: Way, hists: npt.NDArray[Any], width: int, segment: int, count: int, block: int, tolls: Tolls
) -> Completed:
    """The words coded in one way, with a table for each row; with several, each segment has one of them."""
    out = ffi.new("brv_choice *")
    rows = hists.size >> width
    view = ffi.from_buffer("uint64_t[]", _counts(hists))
    _done(lib.brv_coded(way, view, rows, width, segment, count, block, tolls, out))
    return _completed(out)


def floor(hist: npt.NDArray[Any], width: int, count: int, block: int, tolls: Tolls) -> float:
    """A rank that no completion goes below."""
    rank = ffi.new("double *")
    view = ffi.from_buffer("uint64_t[]", _counts(hist))
    _done(lib.brv_floor(view, width, count, block, tolls, rank))
    return float(rank[0])


def split(words: Words, bits: int, count: int, block: int, tolls: Tolls) -> Sequence[Completed]:
    """The fields of the best Merge for `count` words, some of which are given, the most significant first."""
    fields, found = ffi.new("brv_choice[]", bits), ffi.new("size_t *")
    _done(lib.brv_split(ffi.from_buffer(words), len(words), bits, count, block, tolls, fields, found))
    return [_completed(fields[i]) for i in range(found[0])]


def learn(words: npt.NDArray[np.uint8], coding: Coding, tolls: Tolls) -> tuple[float, npt.NDArray[np.int16]]:
    """The least rank that classes of the segments, rows of `words`, reach.

    And the code lengths of each, by leading bits.
    """
    lengths = np.zeros((coding.most, 1 << COARSE_BITS), np.int16)
    tables, rank = ffi.new("uint32_t *"), ffi.new("double *")
    _done(
        lib.brv_learn(
            ffi.from_buffer("uint8_t[]", words),
            words.size,
            ffi.new("brv_coding *", coding),
            tolls,
            tables,
            rank,
            ffi.from_buffer("int16_t[]", lengths),
        )
    )
    return float(rank[0]), lengths[: tables[0]]


def assign(
    words: npt.NDArray[np.uint8], segment: int, width: int, lengths: npt.NDArray[np.int16], hists: Counts
) -> npt.NDArray[np.uint8]:
    """The class of each segment, the last ragged; its words are added to that row of hists."""
    classes = np.empty(-(-len(words) // segment), np.uint8)
    _done(
        lib.brv_assign(
            ffi.from_buffer("uint8_t[]", words),
            len(words),
            segment,
            width,
            ffi.from_buffer("int16_t[]", lengths),
            len(lengths),
            ffi.from_buffer("uint8_t[]", classes),
            ffi.from_buffer("uint64_t[]", hists),
        )
    )
    return classes


def learn_pairs(words: npt.NDArray[np.uint8], coding: Coding, tolls: Tolls) -> list[tuple[float, Pairs]]:
    """Pairs of classes of segments, rows of `words`, and of the places in them, and the rank that they reach.

    First those that rank best, then those with one class of segments; without such as come to one table or
    have one class of places. None where these classes save too little for what is asked.
    """
    found, many = ffi.new("brv_pairs[2]"), ffi.new("uint32_t *")
    places = np.empty(coding.segment, np.uint8)
    _done(
        lib.brv_learn_pairs(
            ffi.from_buffer("uint8_t[]", words),
            words.size,
            ffi.new("brv_coding *", coding),
            tolls,
            found,
            many,
            ffi.from_buffer("uint8_t[]", places),
        )
    )
    learnt = []
    for each in found[0 : many[0]]:
        if each.columns > 1 and each.tables > 1:
            lengths = np.frombuffer(ffi.buffer(each.lengths), np.int16).reshape(-1, 1 << COARSE_BITS)
            pairs = np.frombuffer(ffi.buffer(each.table), np.uint8)[: each.rows * each.columns]
            of_rows, table = lengths[: each.rows].copy(), pairs.reshape(each.rows, each.columns).copy()
            learnt.append((float(each.rank), Pairs(each.tables, of_rows, places, table)))
    return learnt


def count_pairs(
    words: npt.NDArray[np.uint8],
    segment: int,
    width: int,
    classes: npt.NDArray[np.uint8],
    pairs: Pairs,
    hists: Counts,
) -> None:
    """Add the words of the segments, the last ragged, of these classes, to the rows of their tables."""
    _done(
        lib.brv_count_pairs(
            ffi.from_buffer("uint8_t[]", words),
            len(words),
            segment,
            width,
            ffi.from_buffer("uint8_t[]", classes),
            ffi.from_buffer("uint8_t[]", pairs.places),
            len(pairs.pairs),
            pairs.pairs.shape[1],
            ffi.from_buffer("uint8_t[]", pairs.pairs),
            ffi.from_buffer("uint64_t[]", hists),
        )
    )


def in_pairs(done: Completed, pairs: Pairs, segment: int, count: int, tolls: Tolls) -> Completed:
    """What `coded` gives for so many tables, put right for pairs of classes."""
    choice = ffi.new("brv_choice *", {"size": done.size, "toll": done.toll})
    lib.brv_in_pairs(choice, pairs.tables, *pairs.pairs.shape, segment, count, tolls)
    return done._replace(size=choice.size, toll=choice.toll)
