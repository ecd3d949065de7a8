"""What planning works out in native code (native/plan_*.c), in plain numpy: for tests to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import huffman_lengths
from brevisfs._native._plan import CHUNK, COARSE_BITS
from brevisfs.dsl import Huffman, Lit, Pack, Rans, Sparse, Tunstall, Zstd
from brevisfs.synth import _times
from brevisfs.synth._fields import JOINED_REST, MOST_TOP, Field, field_time, merged
from brevisfs.synth._literal import (
    CODE_BITS,
    NODE_BYTES,
    PROBABILITY_BITS,
    SYMBOL_BITS,
    TUNSTALL_BITS,
    Choice,
    Extent,
    better,
    constant,
    raw,
)
from brevisfs.synth._profile import FEW_TABLES, Settings
from brevisfs.synth._sample import Sample, Words

Histogram = NDArray[np.int64]
Rows = NDArray[np.float64]
Changing = Callable[[Field], float] | None

TUNSTALL_WORDS = 7
LEAST_WEIGHT = 1e-12
SETTLING = 16
CODED_BYTES = 3
STREAMED_WORDS = 16384
MOST_CHUNKS = 1 << 10
ZSTD_BLOCK_BYTES = 24
SIDE, MEANS, TURNS = 8, 32, 2
ROUNDS = 4
SIDE, MEANS, TURNS = 8, 32, 2

# ---- costs


def entropy_bits(hist: Histogram) -> float:
    """Order-0 entropy of all the words counted, in bits."""
    counts = hist[hist > 0].astype(np.float64)
    total = counts.sum()
    return float(total * np.log2(total) - (counts * np.log2(counts)).sum()) if total else 0.0


def huffman_bits(hists: Histogram, max_length: int) -> float:
    """Bits of all the words counted, each row under its best prefix code of `max_length` bits at most.

    Infinite if a row has more symbols than there are codes.
    """
    if np.count_nonzero(hists, axis=-1).max() > 1 << max_length:
        return float("inf")
    lengths = huffman_lengths(hists.astype(np.uint64), max_length)
    return float((hists * lengths).sum())


def _absent_runs(hists: Histogram) -> NDArray[np.int64]:
    """Lengths of the runs of symbols that never occur in a row."""
    ended = np.ones((hists.size // hists.shape[-1], hists.shape[-1] + 1), np.bool_)
    ended[:, :-1] = hists > 0
    gaps = np.diff(np.flatnonzero(ended), prepend=-1) - 1
    return gaps[gaps > 0]


def huffman_table_bytes(hists: Histogram) -> int:
    """Size of tables as stored: a nibble a symbol, a nibble and groups of 3 bits a run of absent ones."""
    runs = _absent_runs(hists)
    groups = np.maximum(1, -(-np.frexp(runs - 1)[1] // 3))
    return (int(np.count_nonzero(hists)) + len(runs) + int(groups.sum()) + 1) // 2


def rans_bits(hist: Histogram, prob_bits: int) -> float:
    """Bits of all the words counted with probabilities rounded to `prob_bits` bits, none to 0."""
    counts = hist[hist > 0].astype(np.float64)
    if len(counts) > 1 << prob_bits:
        return float("inf")
    if not len(counts):
        return 0.0
    shares = np.maximum(counts / counts.sum() * (1 << prob_bits), 1.0)
    # The symbols rounded up to a share of 1 take theirs from the others.
    shares *= (1 << prob_bits) / shares.sum()
    return float((counts * (prob_bits - np.log2(shares))).sum())


def rans_table_bytes(hist: Histogram, prob_bits: int) -> int:
    """Size of the table as stored: a varint a symbol, two a run of absent ones."""
    counts = hist[hist > 0].astype(np.float64)
    wide = int(np.count_nonzero(counts / counts.sum() * (1 << prob_bits) >= 128)) if len(counts) else 0
    runs = _absent_runs(hist)
    return len(counts) + wide + 2 * len(runs) + int(np.count_nonzero(runs > 128))


def tunstall_bits(hist: Histogram, codeword_bits: int) -> float:
    """Bits of all the words counted, were they independent, in Tunstall codewords of the longest strings.

    After a string with k children in the dictionary comes a word that is none of the k most usual:
    so the strings are a Markov chain whose state is k. Infinite if there are more symbols than codewords.
    """
    shares = np.sort(hist[hist > 0] / hist.sum())[::-1]
    if len(shares) > 1 << codeword_bits:
        return float("inf")
    weights, firsts, lengths, children = _dictionary(shares, 1 << codeword_bits)
    tails = np.maximum(1 - np.concatenate(([0.0], np.cumsum(shares))), 0.0)
    tails[-1] = 0.0
    emitted = weights * tails[children]
    size = len(shares)
    steps = np.bincount(firsts * size + children % size, emitted, size * size).reshape(size, size)
    words = np.bincount(firsts, emitted * lengths, size)
    # From state k on only strings that begin with word k or a rarer one follow.
    steps = np.cumsum(steps[::-1], axis=0)[::-1] / tails[:-1, None]
    words = np.cumsum(words[::-1])[::-1] / tails[:-1]
    state = np.zeros(size)
    state[0] = 1.0
    for _ in range(SETTLING):
        state = (state[:, None] * steps).sum(axis=0)
    return float(codeword_bits * hist.sum() / (state * words).sum())


def _dictionary(
    shares: NDArray[np.float64], most: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Weight, first word, length and number of children of each string of a Tunstall dictionary.

    Those are the single words, and of longer strings those that weigh most. `shares` fall.
    """
    floor = 1.0 / most
    while True:
        levels = [(shares, np.arange(len(shares)))]
        for _ in range(TUNSTALL_WORDS - 1):
            above, firsts = levels[-1]
            fitting = np.searchsorted(-shares, -floor / above, side="right")
            places = np.arange(int(fitting.sum())) - np.repeat(np.cumsum(fitting) - fitting, fitting)
            levels.append((np.repeat(above, fitting) * shares[places], np.repeat(firsts, fitting)))
        longer = np.concatenate([weights for weights, _ in levels[1:]])
        wanted = most - len(shares)
        if len(longer) > wanted:
            floor = float(np.partition(longer, -wanted - 1)[-wanted - 1]) * (1 + 1e-9)
            break
        if len(longer) == wanted or floor < LEAST_WEIGHT:
            break
        floor /= 2
    kept = [levels[0], *((level[0][level[0] >= floor], level[1][level[0] >= floor]) for level in levels[1:])]
    weights = np.concatenate([level for level, _ in kept])
    firsts = np.concatenate([first for _, first in kept])
    lengths = np.repeat(np.arange(1, len(kept) + 1), [len(level) for level, _ in kept])
    children = np.searchsorted(-shares, -floor / weights, side="right")
    return weights, firsts, lengths, np.where(lengths == TUNSTALL_WORDS, 0, children)


def sparse_bytes(exceptions: float, count: float, bits: int) -> float:
    """Payload of `exceptions` words of `bits` bits spread evenly among `count`."""
    if exceptions <= 0:
        return 0.0
    usual = 1 - min(exceptions / count, 1.0)
    gap = 1 + usual**128 + usual**16384
    return float(exceptions * (gap + (bits / 8 if bits > 1 else 0)))


def varint_bytes(value: int) -> int:
    """Bytes of `value` as a varint."""
    return max(1, -(-value.bit_length() // 7))


# ---- literals


def pack(bits: int, low: int, high: int, extent: Extent) -> Choice:
    """Words from `low` to `high` in as few bits as that range takes."""
    width = (high - low).bit_length()
    if width >= bits:
        return raw(bits, extent)
    return Choice(Lit(Pack(width, low)), NODE_BYTES + extent.count * width / 8)


def least(hist: Histogram, extent: Extent, settings: Settings) -> float:
    """A rank that no completion of the words counted goes below."""
    entropy = entropy_bits(hist) / int(hist.sum())
    absent = _absent_runs(hist[None])
    tables = (np.count_nonzero(hist) + 2 * len(absent)) / 2
    time = settings.toll * min(_lookup_ns(entropy), _rans_ns(hist[None], settings))
    coded = extent.count * (entropy + time) / 8 + tables + CODED_BYTES
    others = 1 - int(hist.max()) / int(hist.sum())
    listed = extent.count * others * (1 + (np.log2(len(hist)) / 8 if len(hist) > 2 else 0))
    listed += 2 * extent.blocks + settings.toll * extent.count * _sparse_ns(others) / 8
    symbols = np.flatnonzero(hist)
    packed = extent.count * int(symbols[-1] - symbols[0]).bit_length() / 8
    return NODE_BYTES + min(packed, coded, listed, _tunstall_floor(entropy, extent, settings))


def _lookup_ns(entropy: float) -> float:
    return _times.LOOKUP * min(1.0, max(0.2, (entropy + 1) / 11))


def _rans_ns(hists: Histogram, settings: Settings) -> float:
    few = np.count_nonzero(hists, axis=1).max() <= 64 and not settings.portable
    return _times.RANS_FEW if few else _times.RANS


def _tunstall_floor(entropy: float, extent: Extent, settings: Settings) -> float:
    excess = 1.02 + 0.014 * max(0.0, 3.2 - entropy)
    bits = max(excess * entropy, TUNSTALL_BITS / TUNSTALL_WORDS)
    each = extent.count / 8 if extent.count >= STREAMED_WORDS else inf
    return each * bits * (1 + settings.toll * _times.TUNSTALL / TUNSTALL_BITS)


def _sparse_ns(share: float) -> float:
    return _times.SPARSE + _times.LISTED * share


def complete(hist: Histogram, bits: int, extent: Extent, settings: Settings) -> Choice:
    """The best literal or Const for words counted in `hist`, one bin a symbol of `bits` bits.

    `hist` may come from a sample; it is taken for the whole in proportion.
    """
    symbols = np.flatnonzero(hist)
    low, high = int(symbols[0]), int(symbols[-1])
    if low == high:
        return constant(low)
    best = better(raw(bits, extent), pack(bits, low, high, extent))
    best = better(best, sparse(hist, bits, extent, settings))
    entropy = entropy_bits(hist) / int(hist.sum())
    if entropy * extent.count / 8 < best.rank:
        best = better(best, huffman(hist[None], bits, extent, settings))
        if extent.count / 8 * (entropy + settings.toll * _rans_ns(hist[None], settings)) < best.rank:
            best = better(best, rans(hist[None], bits, extent, settings))
    if bits <= SYMBOL_BITS and _tunstall_floor(entropy, extent, settings) < best.rank:
        best = better(best, tunstall(hist, extent, settings))
    return best


def sparse(hist: Histogram, bits: int, extent: Extent, settings: Settings) -> Choice:
    """The words that are not the most usual one, listed."""
    base = int(np.argmax(hist))
    share = 1 - int(hist[base]) / int(hist.sum())
    payload = sparse_bytes(share * extent.count, extent.count, bits)
    toll = settings.toll * extent.count * _sparse_ns(share) / 8
    return Choice(Lit(Sparse(base)), NODE_BYTES + 2 * extent.blocks + payload, toll)


def huffman(hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int = 0) -> Choice:
    """A table for each row of `hists`; with several, each segment of `segment` words has one of them."""
    streams = 5 if min(extent.count, extent.block) >= STREAMED_WORDS else 1
    coded = huffman_bits(hists, CODE_BITS) / int(hists.sum())
    per_block = 2 + (streams - 1) * varint_bytes(extent.block // 4) + streams * 0.6
    tables = huffman_table_bytes(hists)
    encoding = Huffman(streams, CODE_BITS, len(hists), segment)
    return _coded(encoding, coded, _lookup_ns(coded), tables + extent.blocks * per_block, extent, settings)


def rans(hists: Histogram, bits: int, extent: Extent, settings: Settings, segment: int = 0) -> Choice:
    """A table of probabilities for each row of `hists`; with several, as for Huffman codes."""
    lanes = settings.lanes if min(extent.count, extent.block) >= STREAMED_WORDS else 4
    coded = sum(rans_bits(hist, PROBABILITY_BITS) for hist in hists) / int(hists.sum())
    tables = sum(rans_table_bytes(hist, PROBABILITY_BITS) for hist in hists)
    encoding = Rans(lanes, PROBABILITY_BITS, len(hists), segment)
    # A lane's initial state of 4 bytes holds about one byte's worth of words.
    extra = tables + extent.blocks * (2 + 3 * lanes)
    return _coded(encoding, coded, _rans_ns(hists, settings), extra, extent, settings)


def tunstall(hist: Histogram, extent: Extent, settings: Settings) -> Choice:
    """Strings of words in codewords of 12 bits: their table just fits the first level of a cache."""
    coded = tunstall_bits(hist, TUNSTALL_BITS) / int(hist.sum())
    time = _times.TUNSTALL * coded / TUNSTALL_BITS
    encoding = Tunstall(TUNSTALL_BITS, PROBABILITY_BITS)
    return _coded(
        encoding, coded, time, rans_table_bytes(hist, PROBABILITY_BITS) + 5 * extent.blocks, extent, settings
    )


def _coded(
    encoding: Huffman | Rans | Tunstall,
    coded: float,
    time: float,
    extra: float,
    extent: Extent,
    settings: Settings,
) -> Choice:
    """`coded` bits and `time` ns a word, `extra` bytes beside the codes; several tables cost more of each."""
    if encoding.tables > 1:
        coded += (encoding.tables - 1).bit_length() / encoding.segment
        time += _times.CLASSED + _times.TABLE * encoding.tables
    size = NODE_BYTES + CODED_BYTES + extra + extent.count * coded / 8
    return Choice(Lit(encoding), size, settings.toll * extent.count * time / 8)


# ---- cuts


def split(sample: Sample, settings: Settings) -> Choice:
    """The best Merge of literals, every field priced: what native/plan_split.c finds with few prices."""
    extent = Extent(sample.count, sample.block)
    each = settings.toll * sample.count * field_time(sample.bits) / 8
    changing = _changing(sample)
    choices = {
        (low, high): _field(sample, Field(low, high - low), changing, extent, settings)
        for low in range(sample.bits)
        for high in range(low + 1, sample.bits + 1)
    }
    totals: list[float] = [0.0]
    paths: list[tuple[int, ...]] = [(0,)]
    for high in range(1, sample.bits + 1):
        sums = [totals[low] + each + choices[low, high].rank for low in range(high)]
        low = int(np.argmin(sums))
        totals.append(sums[low])
        paths.append((*paths[low], high))
    cuts = [paths[-1], *_joined(sample.bits)]
    best: Choice | None = None
    for cut in cuts:
        parts = [(Field(low, high - low), choices[low, high]) for low, high in pairwise(cut)]
        found = merged(parts[::-1], extent, settings)
        best = found if best is None else better(best, found)
    assert best is not None
    return best


def _joined(bits: int) -> list[tuple[int, ...]]:
    if bits == SYMBOL_BITS:
        return [(0, rest, bits) for rest in range(1, MOST_TOP + 2)]
    if bits not in JOINED_REST:
        return []
    return [
        (0, bits - top - symbol, *((bits - top,) if top else ()), bits)
        for top in range(MOST_TOP + 1)
        for symbol in range(SYMBOL_BITS, 4, -1)
        if bits - top - symbol <= 24
    ]


def _field(sample: Sample, field: Field, changing: Changing, extent: Extent, settings: Settings) -> Choice:
    if not field.mask & sample.varying:
        return constant((int(sample.words[0]) & field.mask) >> field.low)
    choice = raw(field.width, extent)
    if changing:
        size, share = extent.count * field.width / 8, changing(field)
        runs = NODE_BYTES + size * share + size * (1 - share) / (4 * CHUNK) + extent.blocks * ZSTD_BLOCK_BYTES
        choice = better(choice, Choice(Lit(Zstd()), runs, size * settings.toll * _times.ZSTD_BYTE / 8))
    if field.width > SYMBOL_BITS:
        return choice
    hist = count(sample.words, field.low, field.width)
    # A bound that ties or is no better than the plain choice is not looked into.
    if least(hist, extent, settings) >= choice.rank:
        return choice
    return better(choice, complete(hist, field.width, extent, settings))


def _changing(sample: Sample) -> Changing:
    """The share of chunks in which some bit of a field varies; None if all vary alike."""
    whole = sample.words[: len(sample.words) // CHUNK * CHUNK].reshape(-1, CHUNK)
    chunks = np.bitwise_or.reduce(whole, axis=1) & ~np.bitwise_and.reduce(whole, axis=1)
    chunks = chunks[:: -(-len(chunks) // MOST_CHUNKS) or 1].astype(np.uint64)
    if len(np.unique(chunks)) < 2:
        return None
    return lambda field: float(np.count_nonzero(chunks & np.uint64(field.mask)) / len(chunks))


def count(words: Words, low: int, width: int) -> Histogram:
    """How often each value of the field occurs."""
    kind = words.dtype.type
    values = (words >> kind(low)) & kind((1 << width) - 1)
    return np.bincount(values.astype(np.intp), minlength=1 << width)


# ---- classes: k-means whose distance is code length, then the two most alike become one again and again


def learn(
    segments: Words, bits: int, most: int, rank: Callable[[Histogram], float]
) -> tuple[float, NDArray[np.int64]]:
    """The least rank that up to `most` classes of the segments reach, and the code lengths of those."""
    rows = leading(segments, bits)
    classes = _k_means(rows, min(2 * most, len(rows)))
    hists = _grouped(segments, classes, bits, int(classes.max()) + 1)
    least, best = np.inf, classes
    for became in _mergings(_members(classes, rows)):
        size = int(became.max()) + 1
        if size <= most and (size <= FEW_TABLES or size % 2 == 0):
            reached = rank(_members(became, hists))
            if reached < least:
                least, best = reached, became[classes]
    return least, _code_lengths(_members(best, rows)).astype(np.int64)


def learn_pairs(
    segments: Words, bits: int, rank: Callable[[Histogram, int, int], float], most: int
) -> tuple[NDArray[np.intp], list[tuple[float, NDArray[np.int64], NDArray[np.intp]]]]:
    """Classes of columns; with those of rows, then without, the least rank, code lengths of rows, tables."""
    rows, columns = leading(segments, bits), leading(np.ascontiguousarray(segments.T), bits)
    by_row = _k_means(rows, min(SIDE, len(rows)))
    by_place = _k_means(columns, min(MEANS, len(columns)))
    members = _members(by_place, columns)
    became = next(became for became in _mergings(members) if int(became.max()) < SIDE)
    by_place = became[by_place]
    r, c = int(by_row.max()) + 1, int(by_place.max()) + 1
    for _ in range(TURNS):
        by_place = _dealt(segments.T, bits, by_place, c, by_row, r)
        by_row = _dealt(segments, bits, by_row, r, by_place, c)
    found = []
    for of_rows, kinds in ((by_row, r), (np.zeros_like(by_row), 1))[: 2 if r > 1 else 1]:
        least, best = _merged_pairs(segments, bits, of_rows, kinds, by_place, c, rank, most)
        sums = np.array([rows[of_rows == each].sum(axis=0) for each in range(kinds)])
        found.append((least, _code_lengths(sums).astype(np.int64), best))
    return by_place, found


def _merged_pairs(
    segments: Words,
    bits: int,
    by_row: NDArray[np.intp],
    r: int,
    by_place: NDArray[np.intp],
    c: int,
    rank: Callable[[Histogram, int, int], float],
    most: int,
) -> tuple[float, NDArray[np.intp]]:
    """The least rank, and the table of each pair of r classes of rows and c of columns."""
    tables = by_row[:, None] * c + by_place
    hists = np.bincount((tables << bits | segments).reshape(-1), minlength=r * c << bits).reshape(r * c, -1)
    least, best = np.inf, np.zeros(r * c, np.intp)
    coarse = hists.reshape(r * c, 1 << min(bits, COARSE_BITS), -1).sum(axis=2).astype(np.float64)
    for became in _mergings(coarse):
        size = int(became.max()) + 1
        if size <= most and (size <= FEW_TABLES or size % 2 == 0):
            reached = rank(np.array([hists[became == table].sum(axis=0) for table in range(size)]), r, c)
            if reached < least:
                least, best = reached, became
    return least, best.reshape(r, c)


def _dealt(
    items: Words, bits: int, classes: NDArray[np.intp], size: int, others: NDArray[np.intp], kinds: int
) -> NDArray[np.intp]:
    """The items, rows of words, in the classes that suit them; places in them have others."""
    coarse = min(bits, COARSE_BITS)
    places = (np.arange(len(items))[:, None] * kinds + others) << coarse | items >> bits - coarse
    counts = np.bincount(places.reshape(-1), minlength=len(items) * kinds << coarse)
    rows = counts.reshape(len(items), kinds, 1 << coarse).astype(np.float64)
    lengths = np.array([_code_lengths(rows[classes == each].sum(axis=0)) for each in range(size)])
    dealt: NDArray[np.intp] = np.argmin(rows.reshape(len(items), -1) @ lengths.reshape(size, -1).T, axis=1)
    return dealt


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


def leading(segments: Words, bits: int) -> Rows:
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


def nearest(rows: Rows, lengths: Rows) -> NDArray[np.intp]:
    """The class whose code lengths suit each row of counts best."""
    classes: NDArray[np.intp] = np.argmin(rows @ lengths.T, axis=1)
    return classes


def _members(classes: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
    """The sum of the rows of each class; no class is empty."""
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(int(classes.max()) + 1))
    sums: NDArray[Any] = np.add.reduceat(rows[order], starts, axis=0)
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
        classes = _numbered(nearest(rows, _code_lengths(_members(classes, rows))))
    return classes
