"""Where to cut words into fields: the best Merge of literals for a stream.

Every cut of a word into neighbouring fields is considered: exponents with any number of leading
mantissa bits, byte planes, bit planes, low bits that are zero, rarely set high bits are all cuts.
The cost of a field does not depend on the others', so the best cut is a shortest path over bit
positions; the search for it is native/plan_split.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from brevisfs._native import _plan
from brevisfs.dsl import Const, Lit, Merge, Node, Raw, Sparse
from brevisfs.synth import _literal, _times
from brevisfs.synth._literal import NODE_BYTES, SYMBOL_BITS, Choice, Extent, Histogram
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Sample, Words

JOINED_REST = {16: 14, 32: 24}
"""Most raw bits of a word that one pass puts together, by its bits."""
MOST_TOP = 4
"""Bits of what may stand above the symbol there."""


@dataclass(frozen=True, slots=True)
class Field:
    """Bits `low` to `low + width` of each word, counted from the least significant."""

    low: int
    width: int

    @property
    def high(self) -> int:
        """The bit above the field."""
        return self.low + self.width

    @property
    def mask(self) -> int:
        """The field's bits set."""
        return ((1 << self.width) - 1) << self.low


Parts = list[tuple[Field, Choice]]
"""Completed fields that make up a word, from the most significant one down."""


def cut(sample: Sample, settings: Settings) -> Parts:
    """The best literals or Consts that the sample's stream can be cut into."""
    done = _plan.split(sample.words, sample.bits, sample.count, sample.block, _literal.tolls(settings))
    return [(Field(each.low, each.width), _literal.choice(each)) for each in done]


def is_joined(parts: list[tuple[Field, Node]], bits: int) -> bool:
    """Whether one pass decodes a Merge of such fields.

    That is one field or two that hardly vary, a symbol and raw bits; in bytes a symbol and raw bits.
    """
    if len(parts) < 2 or parts[-1][1] != Lit(Raw()):
        return False
    if bits == SYMBOL_BITS:
        return len(parts) == 2
    (symbol, _), (rest, _) = parts[-2:]
    return (
        bits in JOINED_REST
        and len(parts) <= 4
        and bits - symbol.high <= MOST_TOP
        and symbol.width <= SYMBOL_BITS
        and rest.width <= JOINED_REST[bits]
        and all(_hardly_varies(node) for _, node in parts[:-2])
    )


def _hardly_varies(node: Node) -> bool:
    return isinstance(node, Const) or (isinstance(node, Lit) and isinstance(node.encoding, Sparse))


def field_time(bits: int) -> float:
    """Nanoseconds for one field of a word."""
    return _times.FIELD * next(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def merged(parts: Parts, extent: Extent, settings: Settings) -> Choice:
    """The Merge of fields, or the only field itself."""
    if len(parts) == 1:
        return parts[0][1]
    node = Merge(tuple(field.width for field, _ in parts), tuple(choice.node for _, choice in parts))
    size = NODE_BYTES + sum(choice.size for _, choice in parts)
    bits = sum(node.widths)
    joined = is_joined([(field, choice.node) for field, choice in parts], bits)
    time = _times.JOINED if joined else field_time(bits) * len(parts)
    toll = settings.toll * extent.count * time / 8
    return Choice(node, size, toll + sum(choice.toll for _, choice in parts))


def count(words: Words, low: int, width: int) -> Histogram:
    """How often each value of the field, of at most 16 bits, occurs."""
    return _plan.count(words, low, width)
