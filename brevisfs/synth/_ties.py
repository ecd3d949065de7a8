"""Tensors that are equal or nearly equal to an earlier one: found by a look at a few of their bytes.

Looks are compared by what they have in common, not each with each, so many tensors take no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brevisfs.archive import Kind
from brevisfs.synth._plan import word_bits
from brevisfs.synth._sample import cuts as places
from brevisfs.synth._sections import SMALL_BYTES, Cut
from brevisfs.synth._source import Source

LOOKS, LOOK_BYTES = 8, 64
PIECE_BYTES = 1 << 20

BAND_WORDS = 8
"""Words at a place that make tensors worth comparing if their leading bits are the same."""

ALIKE = 0.75
"""Share of words whose leading bits nearly equal tensors have in common."""

LEADING_BITS = 12


@dataclass(frozen=True, slots=True)
class Tie:
    """The number of the earlier section, and whether its bytes are the same or only much like these."""

    target: int
    equal: bool


def ties(cuts: Iterable[Cut], source: Callable[[Cut], Source]) -> dict[int, Tie]:
    """By number, the sections that an earlier one, itself without a tie, may tell most of.

    Tensors whose bytes look all the same are left out: they take no room anyway. Raises what reading raises.
    """
    found: dict[int, Tie] = {}
    known: dict[tuple[int, bytes], list[tuple[int, Cut]]] = {}
    leads: dict[int, NDArray[np.uint16]] = {}
    bands: dict[tuple[str | None, int, int, bytes], int] = {}
    for number, cut in enumerate(cuts):
        if cut.kind != Kind.TENSOR or cut.nbytes < SMALL_BYTES:
            continue
        own = source(cut)
        looks = [bytes(own.read(at, at + LOOK_BYTES)) for at in places(cut.nbytes, LOOK_BYTES, LOOKS)]
        whole = b"".join(looks)
        if len(set(whole)) == 1:
            continue
        alike = known.setdefault((cut.nbytes, whole), [])
        first = next((target for target, other in alike if _equal(own, source(other))), None)
        if first is not None:
            found[number] = Tie(first, equal=True)
            continue
        keys = [
            (cut.dtype, cut.nbytes, place, band)
            for place, look in enumerate(looks)
            if len(set(band := _leading(look, cut)[:BAND_WORDS].tobytes())) > 2
        ]
        leading = _leading(whole, cut)
        targets = sorted({bands[key] for key in keys if key in bands})
        shares = [float((leads[target] == leading).mean()) for target in targets]
        if shares and max(shares) >= ALIKE:
            found[number] = Tie(targets[shares.index(max(shares))], equal=False)
            continue
        alike.append((number, cut))
        leads[number] = leading
        for key in keys:
            bands.setdefault(key, number)
    return found


def _leading(look: bytes, cut: Cut) -> NDArray[np.uint16]:
    """The uppermost bits of each word: sign, exponent and a little of a float."""
    bits = word_bits(cut.dtype, cut.nbytes)
    bits = bits if bits in (16, 32, 64) else 8
    kept = LEADING_BITS if bits > 8 else 4
    words = np.frombuffer(look, f"<u{bits // 8}")
    leading: NDArray[np.uint16] = (words >> words.dtype.type(bits - kept)).astype(np.uint16)
    return leading


def _equal(first: Source, second: Source) -> bool:
    """Whether two sources of the same length have the same bytes."""
    step = PIECE_BYTES
    spans = [(lo, min(first.nbytes, lo + step)) for lo in range(0, first.nbytes, step)]
    return all(bytes(first.read(*span)) == bytes(second.read(*span)) for span in spans)
