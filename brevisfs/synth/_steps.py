"""Maps and Scans that may make words simpler, and a glance at whether they do.

Xor with a word and the reversal of bits are left out: whatever fields are cut afterwards have the same
counts as fields of the words as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import _plan
from brevisfs.dsl import Add, Gray, RotR, ZigZag
from brevisfs.synth import _times
from brevisfs.synth._literal import SYMBOL_BITS
from brevisfs.synth._sample import Sample, Step, undoing

PROMISING = 0.97
"""A changed stream is looked at closely if its planes' entropy falls below this share."""

SURE, CHANCE = 0.99, 0.02
"""A plane of a few words is no simpler if it has this share of the entropy but for so many bits."""

FELT = 0.005
"""What a plane must save of the whole for it alone to be a hint."""


@dataclass(frozen=True, slots=True)
class Look:
    """What steps, the first of them the outermost, make of a glance: entropy by byte plane, bits a word."""

    production: str
    steps: tuple[Step, ...]
    planes: NDArray[np.float64]

    @property
    def bits(self) -> float:
        """Bits a word, were its bytes independent."""
        return float(self.planes.sum())


def changed(sample: Sample, steps: tuple[Step, ...]) -> Sample:
    """D of the steps."""
    for step in steps:
        sample = sample.undone(step)
    return sample


def time(step: Step) -> float:
    """Nanoseconds a word that decoding a step takes."""
    match step:
        case str():
            return _times.SCAN
        case RotR():
            return 0.0
        case Gray():
            return _times.GRAY
        case _:
            return _times.MAP


def looks(glance: Sample) -> list[Look]:
    """The glance as it is, then under each of the productions that apply to it."""
    every = [("", ()), *_candidates(glance)]
    changes = [list(map(undoing, steps)) for _, steps in every]
    planes = _plan.looks(glance.words, glance.ends, glance.bits, changes)
    found = [Look(name, steps, row) for (name, steps), row in zip(every, planes, strict=True)]
    return found if found[0].planes.any() else found[:1]


def may_be_simpler(seen: list[Look]) -> bool:
    """Whether some look, though at few words, has a plane that is simpler than without its steps."""
    sure = (SURE * seen[0].planes - CHANCE).tolist()
    others = (look.planes.tolist() for look in seen[1:])
    return any(bits <= least for planes in others for bits, least in zip(planes, sure, strict=True))


def promising(seen: list[Look]) -> list[Look]:
    """The looks under which the words are simpler as a whole."""
    return [look for look in seen[1:] if look.bits < PROMISING * seen[0].bits]


def hints(seen: list[Look]) -> bool:
    """Whether some byte plane alone is simpler under a Scan, which a search below the cut may use."""
    plain = seen[0]
    saved = [plain.planes - look.planes for look in seen[1:] if look.steps in (("xor",), ("add",))]
    least = np.maximum((1 - PROMISING) * plain.planes, FELT * plain.bits)
    return any(bool((planes > least).any()) for planes in saved)


def _candidates(glance: Sample) -> Iterator[tuple[str, tuple[Step, ...]]]:
    if glance.bits > SYMBOL_BITS:
        yield "map zigzag", (ZigZag(),)
        yield "map gray", (Gray(),)
        lowest = int(glance.words.min())
        if lowest:
            yield "map add", (Add(lowest),)
    if all(end - start > 1 for start, end in zip(glance.starts, glance.ends, strict=True)):
        yield "scan xor", ("xor",)
        yield "scan add", ("add",)
        yield "scan add zigzag", ("add", ZigZag())
