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

    `toll` is what a nanosecond of decoding a word costs, in bits of that word; `tables` the most that
    a literal has. More than FEW_TABLES have to save the share `many_tables` of a tensor: a reader
    holds 16 KiB for each.
    """

    toll: float
    tables: int
    many_tables: float


FEW_TABLES = 4

SETTINGS = {
    Profile.FAST: Settings(toll=1.0, tables=4, many_tables=0.0),
    Profile.BALANCED: Settings(toll=0.03, tables=8, many_tables=0.0007),
    Profile.DENSE: Settings(toll=0.003, tables=16, many_tables=0.0),
}
