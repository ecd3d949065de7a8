"""zstd as a literal: what repeats at a distance, priced by trial on a part of the words."""

from __future__ import annotations

from math import inf

import numpy as np

from brevisfs._native import _plan
from brevisfs.dsl import Lit, Zstd
from brevisfs.synth import _literal, _times
from brevisfs.synth._fields import Field, Parts, count, merged
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent, better
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Sample, Words, container, spread

TRIAL_BYTES = 1 << 16
"""Bytes compressed to price zstd for one field."""

QUICK_LEVEL, CLOSE_LEVEL, CLOSEST_LEVEL = 6, 15, 17
"""The levels of trials. 19, at which blocks are encoded, takes twenty times as long as the first and saves
0.5 % of most words, but a third of some that recur at a distance; the second finds that in half the time,
but not single words among such as do not recur, which the third does."""

NARROWEST = 8
"""Fields with fewer bits are not tried: what recurs in them is mostly chance."""

RECURRING = 0.02
"""Share of the words' neighbourhoods that must occur again for trials of every field."""

MOSTLY = 0.5
"""Share of words that occur again, up to which they are single ones among such as do not."""

TELLING_BITS = 24
"""Bits that vary in a word, above which one that comes again does so by no chance."""

LOOKED_AT = 2, 1 << 12
"""Runs in which words may recur, and their length."""

HOPELESS = 1.25
"""A trial ends where what was compressed so far takes this many times what it has to fall below."""


def recurs(sample: Sample) -> bool:
    """Whether enough neighbourhoods occur more than once in some run of the sample.

    They are of 8 bytes, or of one word that tells enough: symmetric filters have words in reverse order.
    """
    reach = 1 if sample.varying.bit_count() > TELLING_BITS else 64 // sample.bits
    runs = sample.head(*LOOKED_AT).runs
    return any(_plan.recurring(words, sample.bits, reach) > RECURRING * len(words) for words in runs)


def wanted(parts: Parts, everywhere: bool) -> bool:
    """Whether trials may change the parts that a stream was cut into."""
    return everywhere or any(_is_zstd(choice) for _, choice in parts)


def untried(sample: Sample, parts: Parts, settings: Settings) -> Parts:
    """The parts without zstd, of which a cut says only what it might come to."""
    extent = Extent(sample.count, sample.block)
    return [
        (field, _plain(sample, field, extent, settings) if _is_zstd(choice) else choice)
        for field, choice in parts
    ]


def settle(sample: Sample, parts: Parts, settings: Settings, everywhere: bool) -> Parts:
    """The parts with zstd where a trial shows it smaller, and only there.

    Tried for the fields where the cut put it and, if `everywhere`, for all the wider ones, for bytes
    (the cut splits what recurs together where it is best for what does not), and for the stream uncut.
    """
    extent = Extent(sample.count, sample.block)
    settled = []
    for (field, plain), (_, choice) in zip(untried(sample, parts, settings), parts, strict=True):
        if _is_zstd(choice) or (everywhere and field.width >= NARROWEST and _is_literal(plain)):
            tried = _trial(sample, field, extent, settings, plain.rank, everywhere)
            settled.append((field, better(plain, tried)))
        else:
            settled.append((field, plain))
    if not everywhere or len(parts) == 1:
        return settled
    known = merged(settled, extent, settings).rank
    if [field for field, _ in parts] != (bytewise := _bytes(sample.bits)):
        by_byte: Parts = []
        for field in bytewise:
            plain = _plain(sample, field, extent, settings)
            by_byte.append((field, better(plain, _trial(sample, field, extent, settings, plain.rank, True))))
        if (rank := merged(by_byte, extent, settings).rank) < known:
            settled, known = by_byte, rank
    whole = Field(0, sample.bits)
    uncut = _trial(sample, whole, extent, settings, known, True)
    return [(whole, uncut)] if uncut.rank < known else settled


def _bytes(bits: int) -> list[Field]:
    """The bytes of a word, the most significant first, which may be narrower."""
    return [Field(low, min(8, bits - low)) for low in reversed(range(0, bits, 8))]


def _is_zstd(choice: Choice) -> bool:
    return isinstance(choice.node, Lit) and isinstance(choice.node.encoding, Zstd)


def _is_literal(choice: Choice) -> bool:
    return isinstance(choice.node, Lit)


def _plain(sample: Sample, field: Field, extent: Extent, settings: Settings) -> Choice:
    """The field's completion without zstd."""
    if not field.mask & sample.varying:
        return _literal.constant((int(sample.words[0]) & field.mask) >> field.low)
    if field.width <= _literal.SYMBOL_BITS:
        return _literal.complete(count(sample.words, field.low, field.width), field.width, extent, settings)
    return _literal.raw(field.width, extent)


def _trial(
    sample: Sample, field: Field, extent: Extent, settings: Settings, known: float, closely: bool
) -> Choice:
    """zstd for the field, at the rate it has on some blocks' worth of the sample.

    Known is a rank that it has to fall below to be of use.
    """
    block = sample.block
    runs = [run[at : at + block] for run in sample.runs for at in range(0, len(run), block)]
    wanted = max(1, TRIAL_BYTES * 8 // (field.width * len(runs[0])))
    values = [_values(run, field) for run in runs]
    words = sum(map(len, values))
    again = [_plan.recurring(value, field.width, 1) if closely else 0 for value in values]
    single = field.width > TELLING_BITS and RECURRING < sum(again) / words < MOSTLY
    # What a run takes goes by how often its words change, what single words save by how often there are such:
    # taking that into account, a few runs tell of all.
    tells = again if single else [1 + int(np.count_nonzero(value[1:] != value[:-1])) for value in values]
    order = sorted(range(len(values)), key=lambda i: tells[i])
    tried = order[-wanted:] if single else [order[i] for i in spread(len(order), wanted)]
    plain = extent.count * field.width / 8
    toll = settings.toll * plain * _times.ZSTD_BYTE / 8

    def tried_at(level: int) -> float:
        taken = told = whole = 0.0
        size = inf
        for i in reversed(tried):
            taken += _plan.zstd_bytes(values[i], field.width, level)
            told += tells[i] * words / sum(tells)
            whole += len(values[i])
            saved = (whole * field.width / 8 - taken) / told
            size = NODE_BYTES + (plain - saved * extent.count if single else taken / told * extent.count)
            if size + toll > HOPELESS * known:
                break
        return size

    size = tried_at(QUICK_LEVEL)
    decided = field.width == sample.bits and size + toll < known
    if closely and not decided and size + toll <= HOPELESS * known:
        size = tried_at(CLOSEST_LEVEL if single else CLOSE_LEVEL)
    return Choice(Lit(Zstd()), size, toll)


def _values(words: Words, field: Field) -> Words:
    kind = words.dtype.type
    return ((words >> kind(field.low)) & kind((1 << field.width) - 1)).astype(container(field.width))
