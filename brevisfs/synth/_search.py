"""The search: which program describes a stream in the fewest bytes.

A hole is a stream of known words. A production fills it with an operator whose children are smaller
or simpler holes; it applies only where D gives the children's words, so what comes out is right by
construction. Here the root is expanded with every production that applies, and each hole below it
with Map, Scan and the best cut into fields, whose literals complete the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from brevisfs.dsl import (
    Add,
    BitReverse,
    Concat,
    Function,
    Gray,
    Map,
    Node,
    Repeat,
    RotR,
    Scan,
    ScanKind,
    Xor,
    ZigZag,
)
from brevisfs.synth import _fields, _structure, _zstd
from brevisfs.synth._costs import entropy_bits
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent, constant, raw
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Sample
from brevisfs.synth._source import Part

Step = Function | ScanKind
"""A Map's function or a Scan's kind."""

PROMISING = 0.97
"""A changed stream is looked at closely if its planes' entropy falls below this share."""

SHORT_WORDS = 4096
"""Streams shorter than this are only looked at as they are and in their simplest change."""

SETTLED = 2
"""How many of the best cut streams have zstd tried on their fields."""

GLANCE_RUNS, GLANCE_WORDS = 8, 1024


@dataclass(frozen=True, slots=True)
class Hint:
    """What the dtype and shape say about where to look; never what may be found."""

    floating: bool = False
    shape: tuple[int, ...] = ()


def expand_root(part: Part, hint: Hint, settings: Settings) -> list[Choice]:
    """Completed programs for all of the words, the best first; the plain literal is among them."""
    if part.bits in (8, 16, 32, 64):
        found = _structure.survey(part)
        if found.constant is not None:
            return [constant(found.constant)]
    else:
        found = None
    length = _structure.period(part, hint.shape)
    if length is not None:
        return _ranked([_repeat(part, length, hint, settings), *expand(part, hint, settings)])
    choices = expand(part, hint, settings)
    lengths = _structure.runs(part, found) if found is not None else []
    if lengths:
        choices.append(_concat(part, lengths, hint, settings))
    return _ranked(choices)


def expand(part: Part, hint: Hint, settings: Settings) -> list[Choice]:
    """Completed programs without Concat and Repeat, the best first."""
    sample = part.sample()
    plain = raw(part.bits, Extent(part.count, part.block))
    everywhere = _zstd.recurs(sample)
    split = [(steps, changed, _fields.split(changed, settings)) for steps, changed in _changed(sample, hint)]
    split.sort(key=lambda entry: entry[2].rank)
    choices = [plain]
    for i, (steps, changed, choice) in enumerate(split):
        settled = _zstd.settle(changed, choice, settings, everywhere) if i < SETTLED else choice
        choices.append(_wrapped(settled, steps, sample))
    return _ranked(choices)


def _ranked(choices: list[Choice]) -> list[Choice]:
    return sorted(choices, key=lambda choice: choice.rank)


def _repeat(part: Part, length: int, hint: Hint, settings: Settings) -> Choice:
    child = min(expand(part.part(0, length), hint, settings), key=lambda choice: choice.rank)
    return Choice(Repeat(part.count // length, child.node), child.size + NODE_BYTES, child.toll)


def _concat(part: Part, lengths: list[int], hint: Hint, settings: Settings) -> Choice:
    edges = [0, *np.cumsum(lengths).tolist()]
    children = []
    for start, end in pairwise(edges):
        child = part.part(start, end - start)
        found = _structure.survey(child)
        if found.constant is not None:
            children.append(constant(found.constant))
        else:
            children.append(expand(child, hint, settings)[0])
    node = Concat(tuple(lengths), tuple(child.node for child in children))
    size = sum(child.size for child in children) + NODE_BYTES
    return Choice(node, size, sum(child.toll for child in children))


def _changed(sample: Sample, hint: Hint) -> Iterator[tuple[tuple[Step, ...], Sample]]:
    """The stream, or a float's with the sign moved below the mantissa; then what looks simpler changed.

    Turned, the exponent leads and what is kept raw lies together, which decodes faster; any cut that
    leaves the sign alone costs the same either way.
    """
    base: tuple[Step, ...] = (RotR(1),) if sample.bits > 8 and hint.floating else ()
    yield base, _stepped(sample, base)
    glance = sample.head(GLANCE_RUNS, GLANCE_WORDS)
    limit = PROMISING * _plane_bits(glance)
    if limit > 0:
        simple = [(_plane_bits(_stepped(glance, steps)), steps) for steps in _step_lists(glance)]
        simple = [entry for entry in simple if entry[0] < limit]
        if sample.count < SHORT_WORDS:
            simple = sorted(simple, key=lambda entry: entry[0])[:1]
        for _, steps in simple:
            yield steps, _stepped(sample, steps)


def _step_lists(glance: Sample) -> list[tuple[Step, ...]]:
    lists: list[tuple[Step, ...]] = [(ZigZag(),), (Gray(),), (BitReverse(),)] if glance.bits > 8 else []
    values, counts = np.unique(glance.words, return_counts=True)
    usual, lowest = int(values[np.argmax(counts)]), int(values[0])
    if glance.bits > 8 and usual:
        lists.append((Xor(usual),))
    if glance.bits > 8 and lowest:
        lists.append((Add(lowest),))
    if min(len(piece) for piece in glance.pieces) >= 2:
        lists += [("xor",), ("add",), ("add", ZigZag())]
    return lists


def _stepped(sample: Sample, steps: tuple[Step, ...]) -> Sample:
    for step in steps:
        sample = sample.scanned(step) if isinstance(step, str) else sample.mapped(step)
    return sample


def _wrapped(choice: Choice, steps: tuple[Step, ...], sample: Sample) -> Choice:
    node: Node = choice.node
    size = choice.size
    for step in reversed(steps):
        node = Scan(step, node) if isinstance(step, str) else Map(step, node)
        size += NODE_BYTES
        if isinstance(step, str):
            size += sample.blocks * ((sample.bits + 7) // 8)
    return Choice(node, size, choice.toll)


def _plane_bits(sample: Sample) -> float:
    """Bits a word of the sample, were its bytes independent: a quick measure of how simple it is."""
    total = 0.0
    for low in range(0, sample.bits, 8):
        hist = _fields.count(sample.words, low, min(8, sample.bits - low))
        total += entropy_bits(hist)
    return total / len(sample.words)
