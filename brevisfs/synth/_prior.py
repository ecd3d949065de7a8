"""The production prior: which productions led to good programs in which contexts.

It orders the search and does nothing else: every production that applies keeps a share, so none is
out of reach, and nothing of it is needed to decode.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log2

from brevisfs.errors import BrevisError, ExitCode

LITERAL = "lit"
PRODUCTIONS = (
    LITERAL,
    "cut",
    "map rotr",
    "map zigzag",
    "map gray",
    "map add",
    "scan xor",
    "scan add",
    "scan add zigzag",
    "concat",
    "repeat",
    "record",
    "bytes",
    "transpose",
    "palette",
    "select",
)
"""What may fill a hole."""

LAST = (LITERAL, "transpose")
"""Productions that leave no holes; all others leave at least one."""

BETA = 0.5
"""What every production counts for beyond what was seen."""

VERSION = 1


class BadPrior(BrevisError):
    """A file is no prior that this version can use."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Prior:
    """How often each production was part of the best program, by context (see `_features`)."""

    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def cost(self, production: str, context: str) -> float:
        """-log2 of the smoothed share of a production in a context."""
        seen = self.counts.get(context, {})
        total = sum(seen.values()) + BETA * len(PRODUCTIONS)
        return log2(total / (seen.get(production, 0) + BETA))

    def least(self, context: str) -> float:
        """A cost that no completion of a hole goes below.

        From a relaxed grammar: what comes after a production that leaves holes is one that leaves none,
        in whatever context makes that cheapest.
        """
        costs = {production: self.cost(production, context) for production in PRODUCTIONS}
        further = min(cost for production, cost in costs.items() if production not in LAST)
        return min(*(costs[production] for production in LAST), further + self._least_last)

    @cached_property
    def _least_last(self) -> float:
        return min(self.cost(production, context) for context in ("", *self.counts) for production in LAST)

    def to_json(self) -> str:
        """The prior as a file has it, contexts and productions in alphabetical order."""
        return json.dumps({"brevisfs_prior": VERSION, "counts": self.counts}, indent=1, sort_keys=True)


def counted(used: Iterable[tuple[str, str]]) -> Prior:
    """The prior of (context, production) pairs."""
    counts: dict[str, Counter[str]] = {}
    for context, production in used:
        counts.setdefault(context, Counter())[production] += 1
    return Prior(counts)


def merged(priors: Iterable[Prior]) -> Prior:
    """All that several priors have seen."""
    counts: dict[str, Counter[str]] = {}
    for prior in priors:
        for context, seen in prior.counts.items():
            counts.setdefault(context, Counter()).update(seen)
    return Prior(counts)


def from_json(text: str | bytes) -> Prior:
    """The prior that `to_json` wrote. Raises BadPrior."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPrior("not a prior: it is not JSON; `brevisfs prior learn` makes one") from None
    version = data.get("brevisfs_prior") if isinstance(data, dict) else None
    if version != VERSION:
        said = "not a prior" if version is None else f"a prior of version {version!r}, not {VERSION}"
        raise BadPrior(f"{said}; `brevisfs prior learn` makes one")
    counts = data.get("counts")
    if not isinstance(counts, dict) or not all(map(_is_seen, counts.values())):
        raise BadPrior("a prior without counts of productions by context; `brevisfs prior learn` makes one")
    return Prior(counts)


def _is_seen(seen: object) -> bool:
    return isinstance(seen, dict) and all(
        production in PRODUCTIONS and type(count) is int and 0 <= count < 1 << 53
        for production, count in seen.items()
    )
