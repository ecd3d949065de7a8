"""Contexts of the production prior: what a hole's words look like, in a few words of text."""

from __future__ import annotations

from bisect import bisect

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import _plan
from brevisfs.synth._sample import Sample, distinct

ZERO_SHARES = (0.001, 0.01, 0.1, 0.5)
DISTINCT_SHARES = (0.004, 0.03, 0.25, 0.75)
SIZE_STEP = 3
"""Powers of two from one size to the next."""

DIFFERENCE_STEPS = 8


def context(kind: str, glance: Sample) -> str:
    """Kind of words, size, zeros, distinct words and entropy of the change between neighbours, in classes."""
    words = glance.words
    zeros = bisect(ZERO_SHARES, 1 - np.count_nonzero(words) / len(words))
    different = bisect(DISTINCT_SHARES, len(distinct(words)[0]) / len(words))
    changes = glance.undone("add").words if len(words) > len(glance.ends) else words[:0]
    entropy = plane_bits(changes, glance.bits).sum() if len(changes) else 0.0
    difference = round(DIFFERENCE_STEPS * float(entropy) / glance.bits)
    return f"{kind} n{glance.count.bit_length() // SIZE_STEP} z{zeros} d{different} e{difference}"


def plane_bits(words: NDArray[np.unsignedinteger], bits: int) -> NDArray[np.float64]:
    """Entropy of each byte plane of the words, in bits a word, from the least significant plane up."""
    return _plan.plane_bits(words, bits) / len(words)
