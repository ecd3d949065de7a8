"""Profiles: how much decoding time a saved bit may cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Profile(StrEnum):
    """What a pack aims at: `fast` decodes near memory speed, `dense` is for archives."""

    FAST = "fast"
    BALANCED = "balanced"
    DENSE = "dense"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a profile means to the search.

    `toll` is what a nanosecond of decoding a word costs, in bits of that word; `symbol_bits` the
    widest field that is coded, `tables` the most that a literal has.
    """

    toll: float
    symbol_bits: int
    tables: int


SETTINGS = {
    Profile.FAST: Settings(toll=1.0, symbol_bits=8, tables=4),
    Profile.BALANCED: Settings(toll=0.03, symbol_bits=8, tables=8),
    Profile.DENSE: Settings(toll=0.0, symbol_bits=10, tables=16),
}
