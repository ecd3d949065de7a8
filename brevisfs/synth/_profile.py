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

    `toll` is what a nanosecond of decoding a word costs, in bits of that word; `lanes` those of rANS in
    long streams: 64 decode in half the time of 32 and take 0.012 bits a word more, with blocks of 65,536;
    `block` is how many words a block has, see `_source.block_words`: to read a few bytes it is decoded whole;
    `tables` the most that a literal has. More than FEW_TABLES have to save the share `many_tables` of a
    tensor: a reader holds 16 KiB for each. Tables by row and column have to save the share `pairs` of it:
    with them, decoding takes a quarter longer. If it is `portable`, rANS counts with what it takes where no
    vectors look it up: what decodes fast here does so everywhere.
    """

    toll: float
    lanes: int
    tables: int
    many_tables: float
    pairs: float = 0.0
    portable: bool = False
    block: int = 1 << 16


FEW_TABLES = 4

SETTINGS = {
    Profile.FAST: Settings(toll=1.0, lanes=64, tables=4, many_tables=0.0, portable=True, block=1 << 15),
    Profile.BALANCED: Settings(toll=0.03, lanes=64, tables=8, many_tables=0.0007, pairs=0.0025),
    Profile.DENSE: Settings(toll=0.003, lanes=32, tables=16, many_tables=0.0),
}
