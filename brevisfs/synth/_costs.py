"""What the words of a histogram cost in each encoding, in bytes, before anything is encoded.

All are for the payload alone (no program, no block overhead) unless the name says table. A
histogram is an array of counts by symbol; `total` of a sample's may be scaled by the caller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import huffman_lengths

Histogram = NDArray[np.int64]


def entropy_bits(hist: Histogram) -> float:
    """Order-0 entropy of all the words counted, in bits."""
    counts = hist[hist > 0].astype(np.float64)
    total = counts.sum()
    return float(total * np.log2(total) - (counts * np.log2(counts)).sum()) if total else 0.0


def huffman_bits(hist: Histogram, max_length: int) -> float:
    """Bits of all the words counted under the best prefix code of `max_length` bits at most.

    Infinite if there are more symbols than codes.
    """
    if np.count_nonzero(hist) > 1 << max_length:
        return float("inf")
    lengths = huffman_lengths(hist.astype(np.uint64), max_length)
    return float((hist * lengths).sum())


def _absent_runs(hist: Histogram) -> NDArray[np.int64]:
    """Lengths of the runs of symbols that never occur."""
    absent = np.concatenate(([0], (hist == 0).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(absent))
    return edges[1::2] - edges[0::2]


def huffman_table_bytes(hist: Histogram) -> int:
    """Size of the table as stored: a nibble a symbol, a nibble and groups of 3 bits a run of absent ones."""
    runs = _absent_runs(hist)
    groups = sum(max(1, -(-int(run - 1).bit_length() // 3)) for run in runs)
    return (int(np.count_nonzero(hist)) + len(runs) + groups + 1) // 2


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
    return len(counts) + wide + sum(1 + varint_bytes(int(run) - 1) for run in _absent_runs(hist))


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
