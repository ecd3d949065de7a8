"""What the words of a histogram cost in each encoding, in bytes, before anything is encoded.

All are for the payload alone (no program, no block overhead) unless the name says table. A
histogram is an array of counts by symbol; `total` of a sample's may be scaled by the caller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import huffman_lengths

Histogram = NDArray[np.int64]

TUNSTALL_WORDS = 7
"""Words of the longest string of a Tunstall dictionary."""

LEAST_WEIGHT = 1e-12
SETTLING = 16


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
