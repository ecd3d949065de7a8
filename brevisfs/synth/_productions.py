"""The productions: what may fill a hole, and the holes that leaves.

A production is yielded only where D applies. Besides, a Map or Scan has to make the words look simpler
at a glance: which of them a stream calls for is seen in a few thousand words, and most call for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import log2

import numpy as np

from brevisfs._native import _plan
from brevisfs.dsl import Concat, Const, Huffman, Lit, Node, Palette, Repeat, Select, Transpose
from brevisfs.dsl._check import MAX_DEPTH, MAX_PALETTE
from brevisfs.dsl._program import index_bits
from brevisfs.synth import _columns, _features, _fields, _structure, _times
from brevisfs.synth._fields import Field
from brevisfs.synth._hole import TURN, Hole, Move, Slot, placed
from brevisfs.synth._literal import CODE_BITS, NODE_BYTES, SYMBOL_BITS, Choice, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Sample, Step, Words, container, distinct
from brevisfs.synth._source import Part, block_words

SOME_WORDS = 1024
"""Words that tell whether Palette and Select are looked at."""

NARROW_BITS, DISTINCT_NARROW, DISTINCT = 16, 0.6, 0.95
PALETTE_GAIN = 0.9
SELECT_SHARE, SELECT_GAIN = 0.03, 2.0
"""A table is looked at if of some words not more than a share are different, and if places in it take so much
less than the words do as fields; a Select, if what the usual word takes so far is so many times what its
mask takes."""

ALIKE, NOISE = 1.005, 7.9
"""Bits a byte for which the place in its word tells so little, and from which it is noise."""

WIDEST_RECORD = 8
"""Bytes up to which a record is a word."""


def moves(hole: Hole) -> Iterator[Move]:
    """Every production that applies to the hole, but the literal."""
    if hole.depth < MAX_DEPTH and hole.constant is None:
        yield from _whole(hole)
        yield from _cut(hole)
        for look in hole.simpler():
            yield _under(hole, look.production, look.steps)
        if hole.bits > SYMBOL_BITS:
            yield from _few(hole)


def _whole(hole: Hole) -> Iterator[Move]:
    """Productions that need all of the words."""
    if hole.part is None:
        return
    length = _structure.period(hole.part, hole.shape)
    if length is not None:
        times = hole.part.count // length
        yield Move("repeat", (_run(hole, hole.part, 0, length),), partial(_over, partial(Repeat, times)))
        return
    lengths = _structure.runs(hole.part, hole.survey) if hole.survey is not None else []
    if lengths:
        starts = accumulate(lengths, initial=0)
        runs = [_run(hole, hole.part, start, count) for start, count in zip(starts, lengths, strict=False)]
        yield Move("concat", tuple(runs), partial(_joined, tuple(lengths)))
    if hole.depth == 0 and hole.part.bits == 8:
        yield from _records(hole, hole.part)
    if hole.depth == 0 and hole.part.bits in (16, 32, 64) and not hole.floating:
        yield from _bytes(hole, hole.part)


def _run(hole: Hole, part: Part, start: int, count: int) -> Hole:
    words = part.part(start, count)
    return Hole(words, hole.depth + 1, hole.kind, hole.settings, floating=hole.floating, greedy=True)


def _joined(lengths: tuple[int, ...], below: Sequence[Choice]) -> Choice:
    node = Concat(lengths, tuple(choice.node for choice in below))
    size = NODE_BYTES + sum(choice.size for choice in below)
    return Choice(node, size, sum(choice.toll for choice in below))


def _records(hole: Hole, part: Part) -> Iterator[Move]:
    """Bytes that are records of fields: as wider words if short, else by column."""
    size, bits = _columns.record(part, hole.shape)
    if 1 < size <= WIDEST_RECORD:
        count = part.count // size
        block = block_words(8 * size, count, hole.settings.block, part.block if hole.fixed else None)
        wide = Part(part.source, 8 * size, count, block)
        record = Hole(wide, 0, f"u{8 * size}", hole.settings, greedy=True)
        yield Move("record", (record,), _alone, nodes=0, size=0.0, part=wide)
    if size > WIDEST_RECORD and not hole.fixed:
        # What it comes to is estimated; fitting finds the tables.
        estimate = min(bits, part.bits) * part.count / 8
        columns = Choice(Transpose(size, Lit(Huffman(1, CODE_BITS))), estimate)
        yield Move("transpose", (columns,), _alone, size=0.0)


def _bytes(hole: Hole, part: Part) -> Iterator[Move]:
    """The bytes of words whose places tell nothing of them, as those of packed narrower ones."""
    words = hole.glance.words
    together = float(_features.plane_bits(words.view(np.uint8), 8).sum())
    apart = float(_features.plane_bits(words, part.bits).mean())
    if 0 < together < min(ALIKE * apart, NOISE):
        count = part.count * part.bits // 8
        block = block_words(8, count, hole.settings.block, part.block if hole.fixed else None)
        narrow = Part(part.source, 8, count, block)
        yield Move("bytes", (Hole(narrow, 0, "u8", hole.settings, greedy=True),), _alone, 0, 0.0, narrow)


def _alone(below: Sequence[Choice]) -> Choice:
    return below[0]


def _cut(hole: Hole) -> Iterator[Move]:
    """The best cut into fields, each of them a hole."""
    if hole.is_turned_first:
        yield _under(hole, "map rotr", TURN)
    elif len(hole.parts) > 1:
        slots = tuple(_field(hole, field, choice) for field, choice in hole.parts)
        fields = [field for field, _ in hole.parts]
        yield Move("cut", slots, partial(_merged, fields, hole.extent, hole.settings))


def _merged(fields: list[Field], extent: Extent, settings: Settings, below: Sequence[Choice]) -> Choice:
    return _fields.merged(list(zip(fields, below, strict=True)), extent, settings)


def _field(hole: Hole, field: Field, choice: Choice) -> Slot:
    if isinstance(choice.node, Const):
        return choice
    words = partial(_bits_of, hole.sample, field)
    kind = f"u{field.width}"
    return Hole(words, hole.depth + 1, kind, hole.settings, literal=choice, recurring=hole.recurring)


def _bits_of(sample: Sample, field: Field) -> Sample:
    kind, narrow = sample.words.dtype.type, container(field.width)
    mask = kind((1 << field.width) - 1)
    words = ((sample.words >> kind(field.low)) & mask).astype(narrow)
    return replace(sample, bits=field.width, words=words)


def _under(hole: Hole, production: str, steps: tuple[Step, ...]) -> Move:
    size = hole.steps_bytes(steps)
    join = partial(_placed, steps, size, hole.steps_toll(steps))
    return Move(production, (hole.below(steps),), join, len(steps), size)


def _placed(steps: tuple[Step, ...], size: float, toll: float, below: Sequence[Choice]) -> Choice:
    return placed(steps, size, toll, below[0])


def _few(hole: Hole) -> Iterator[Move]:
    """Productions for words that are few, or mostly one."""
    some = hole.glance.words[:: -(-len(hole.glance.words) // SOME_WORDS)]
    values, counts = distinct(some)
    literal = 8 * hole.literal.size / hole.extent.count
    usual = int(np.argmax(counts))
    share = int(counts[usual]) / len(some)
    if SELECT_SHARE < share < 1 and share * literal > SELECT_GAIN * _mask_bits(share):
        yield _select(hole, int(values[usual]))
    if len(values) < (DISTINCT if hole.bits > NARROW_BITS else DISTINCT_NARROW) * len(some):
        palette = _palette(hole, PALETTE_GAIN * literal)
        if palette is not None:
            yield palette


def _mask_bits(share: float) -> float:
    """Bits a word of a mask of which `share` are alike."""
    return -share * log2(share) - (1 - share) * log2(1 - share)


def _select(hole: Hole, word: int) -> Move:
    """A mask of the words that are not `word`, and those."""
    sample = hole.sample
    mask = sample.words != sample.words.dtype.type(word)
    ones = replace(sample, bits=1, words=mask.astype(np.uint8))
    left = np.add.reduceat(ones.words, sample.starts, dtype=np.int64)
    ends = tuple(np.cumsum(left[left > 0]).tolist())
    share = ends[-1] / len(sample.words)
    # Each block has its own share of the others.
    count, block = max(1, round(share * sample.count)), max(1, round(share * sample.block))
    others = Sample(sample.bits, count, block, sample.words[mask], ends)
    made = [
        Hole(lambda: ones, hole.depth + 1, "u1", hole.settings, recurring=False),
        Hole(
            lambda: others,
            hole.depth + 1,
            hole.kind,
            hole.settings,
            floating=hole.floating,
            recurring=hole.recurring,
        ),
    ]
    size = NODE_BYTES + (sample.bits + 6) // 7
    toll = hole.settings.toll * sample.count * _times.SELECT / 8
    return Move("select", tuple(made), partial(_selected, word, size, toll), size=size)


def _selected(word: int, size: float, toll: float, below: Sequence[Choice]) -> Choice:
    mask, child = below
    node = Select(word, mask.node, child.node)
    return Choice(node, size + mask.size + child.size, toll + mask.toll + child.toll)


def _palette(hole: Hole, limit: float) -> Move | None:
    """Places in a table of the words, if these are few and all known and take at most `limit` bits each."""
    glance = distinct(hole.glance.words)[1]
    if len(glance) > MAX_PALETTE or _plan.entropy_bits(glance) > limit * int(glance.sum()):
        return None
    words = _every_word(hole)
    if words is None:
        return None
    sample, bits = hole.sample, index_bits(len(words))
    places = np.searchsorted(words, sample.words).astype(container(bits))
    indexes = replace(sample, bits=bits, words=places)
    values = tuple(words.tolist())
    size = 2 * NODE_BYTES + 2 + _varint_bytes(np.diff(words, prepend=words.dtype.type(0)))
    toll = hole.settings.toll * sample.count * _times.PALETTE / 8
    child = Hole(lambda: indexes, hole.depth + 1, f"u{bits}", hole.settings, recurring=hole.recurring)
    return Move("palette", (child,), partial(_looked_up, values, size, toll), size=size)


def _varint_bytes(numbers: Words) -> int:
    """What they take as varints."""
    reaches = [1 << shift for shift in range(7, 8 * numbers.itemsize, 7)]
    longer = (numbers >= numbers.dtype.type(reach) for reach in reaches)
    return len(numbers) + sum(int(np.count_nonzero(each)) for each in longer)


def _looked_up(words: tuple[int, ...], size: float, toll: float, below: Sequence[Choice]) -> Choice:
    child = below[0]
    return Choice(Palette(words, child.node), size + child.size, toll + child.toll)


def _every_word(hole: Hole) -> Words | None:
    """The different words of the whole stream, ascending; None if they are many or not all can be seen."""
    passes = [hole.sample.words] if hole.part is None else hole.part.passes()
    if hole.part is None and len(hole.sample.words) < hole.sample.count:
        return None
    words = distinct(hole.sample.words)[0]
    for some in passes:
        if len(words) > MAX_PALETTE:
            return None
        narrow = hole.bits <= NARROW_BITS
        few = np.flatnonzero(_plan.count(some, 0, hole.bits)) if narrow else distinct(some)[0]
        words = distinct(np.concatenate((words, few.astype(some.dtype))))[0]
    return words if 1 < len(words) <= MAX_PALETTE else None


def _over(operator: Callable[[Node], Node], below: Sequence[Choice]) -> Choice:
    return Choice(operator(below[0].node), below[0].size + NODE_BYTES, below[0].toll)
