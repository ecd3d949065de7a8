"""Holes: streams that a program has yet to produce, and the literal that completes each.

A hole carries its words, or a sample of them, so a production below it applies only where D gives
the words of the holes it leaves: what comes out is right by construction. Everything about a hole
is worked out when it is first asked for, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from brevisfs.dsl import Map, RotR, Scan
from brevisfs.dsl._check import MAX_DEPTH
from brevisfs.synth import _features, _fields, _literal, _steps, _structure, _zstd
from brevisfs.synth._fields import Field, Parts
from brevisfs.synth._literal import NODE_BYTES, SYMBOL_BITS, Choice, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._sample import Sample, Step
from brevisfs.synth._source import Part
from brevisfs.synth._steps import Look

GLANCE_RUNS, GLANCE_WORDS = 8, 1024
FIRST_RUNS, FIRST_WORDS = 4, 256

SHORT_WORDS = 4096
"""Of streams shorter than this only the simplest change is looked at."""

TURN: tuple[Step, ...] = (RotR(1),)
"""Moves the sign of a float below its mantissa."""


@dataclass(frozen=True, eq=False, slots=True)
class Move:
    """A production applied to a hole: the places it leaves, and how they make up the operator.

    `nodes` and `size` are the operators it puts there and their bytes, without what is below them.
    `part` is set where the section's words become others.
    """

    production: str
    slots: tuple[Slot, ...]
    join: Join
    nodes: int = 1
    size: float = NODE_BYTES
    part: Part | None = None


class Hole:
    """A stream below `depth` operators; `part` has all of its words where they lie in the source.

    `kind` names the words to the prior. Of `floating` words the sign is best moved below the mantissa.
    `shape` is that of a tensor, or (). Of a field of the best cut, the `literal` is known.
    If `fixed`, the block size was asked for; if `greedy`, literals may stand behind a Map or Scan. `moves`
    are the productions that apply, once the search has asked.
    """

    def __init__(
        self,
        words: Part | Callable[[], Sample],
        depth: int,
        kind: str,
        settings: Settings,
        *,
        floating: bool = False,
        shape: tuple[int, ...] = (),
        fixed: bool = False,
        greedy: bool = False,
        literal: Choice | None = None,
        recurring: bool | None = None,
    ) -> None:
        self.part = words if isinstance(words, Part) else None
        self._words = words
        self.depth, self.kind, self.settings = depth, kind, settings
        self.floating, self.shape, self.fixed = floating, shape, fixed
        self.greedy, self._given, self._literal = greedy, literal is not None, literal
        self._recurring = recurring
        self._below: dict[tuple[Step, ...], Hole] = {}
        self._tried = False
        self.moves: list[Move] | None = None

    @cached_property
    def sample(self) -> Sample:
        """The words, all of them if they are few."""
        return self._words.sample(self.recurring) if isinstance(self._words, Part) else self._words()

    @cached_property
    def glance(self) -> Sample:
        """A few of the words."""
        return self.sample.head(GLANCE_RUNS, GLANCE_WORDS)

    @cached_property
    def looks(self) -> list[Look]:
        """What Maps and Scans make of the glance, or of a part of it if that shows nothing."""
        if len(self.glance.words) > FIRST_RUNS * FIRST_WORDS:
            first = _steps.looks(self.glance.head(FIRST_RUNS, FIRST_WORDS))
            if not _steps.may_be_simpler(first):
                return first[:1]
        return _steps.looks(self.glance)

    @cached_property
    def context(self) -> str:
        """What the prior is asked by."""
        return _features.context(self.kind, self.glance)

    @cached_property
    def recurring(self) -> bool:
        """Whether words recur at a distance, so that zstd is worth trials everywhere."""
        if self._recurring is not None:
            return self._recurring
        return _zstd.recurs(self.sample if self.part is None else self.part.runs(*_zstd.LOOKED_AT))

    @cached_property
    def survey(self) -> _structure.Survey | None:
        """What one pass over all of the words shows, for words of whole bytes in the source."""
        if self.part is None or self.part.bits not in (8, 16, 32, 64):
            return None
        return _structure.survey(self.part)

    @cached_property
    def constant(self) -> int | None:
        """The word that all words are, if a survey shows that."""
        return None if self.survey is None else self.survey.constant

    @property
    def bits(self) -> int:
        """Bits a word."""
        return (self.part or self.sample).bits

    @cached_property
    def extent(self) -> Extent:
        """How many words, and on which grid."""
        words = self.part or self.sample
        return Extent(words.count, words.block)

    @property
    def held(self) -> int:
        """Bytes of memory that the words take, once they were asked for."""
        return self.sample.words.nbytes if "sample" in self.__dict__ else 0

    @property
    def is_turned_first(self) -> bool:
        """Whether the words are floats to be turned before they are cut.

        Turned, the exponent leads and what is kept raw lies together, which decodes faster; any cut that
        leaves the sign alone costs the same either way.
        """
        return self.floating and self.bits >= SYMBOL_BITS and self.depth + 2 <= MAX_DEPTH

    def below(self, steps: tuple[Step, ...]) -> Hole:
        """The hole under these Maps and Scans."""
        if steps not in self._below:
            # What a hole keeps must not lead back to it, or the words would outlive it for some time.
            words = partial(_steps.changed, self.sample, steps)
            depth = self.depth + len(steps)
            hole = Hole(words, depth, f"u{self.bits}", self.settings, recurring=self.recurring)
            self._below[steps] = hole
        return self._below[steps]

    def simpler(self) -> list[Look]:
        """The Maps and Scans under which the words look simpler; of a few words, only the best."""
        found = [look for look in _steps.promising(self.looks) if self.depth + len(look.steps) <= MAX_DEPTH]
        return sorted(found, key=lambda look: look.bits)[:1] if self.extent.count < SHORT_WORDS else found

    def steps_bytes(self, steps: tuple[Step, ...]) -> int:
        """Bytes of the operators themselves."""
        anchors = self.extent.blocks * ((self.bits + 7) // 8)
        return sum(NODE_BYTES + (anchors if isinstance(step, str) else 0) for step in steps)

    def steps_toll(self, steps: tuple[Step, ...]) -> float:
        """What decoding the operators pays."""
        return self.settings.toll * self.extent.count * sum(map(_steps.time, steps)) / 8

    @property
    def literal(self) -> Choice:
        """The completion by literals: the best cut into fields, each in its best encoding."""
        if self._literal is None:
            self._literal = self._completed()
        return self._literal

    def _completed(self) -> Choice:
        if self.constant is not None:
            return _literal.constant(self.constant)
        best = self._behind(TURN) if self.is_turned_first else self._merged
        for look in self.simpler() if self.greedy else ():
            best = _literal.better(best, self._behind(look.steps))
        return best

    def _behind(self, steps: tuple[Step, ...]) -> Choice:
        return placed(steps, self.steps_bytes(steps), self.steps_toll(steps), self.below(steps).literal)

    @property
    def _merged(self) -> Choice:
        return _fields.merged(self.parts, self.extent, self.settings)

    @property
    def parts(self) -> Parts:
        """The fields of the best cut, or the one that the words are."""
        return self._settled if self._tried else self._untried

    @cached_property
    def _cut(self) -> Parts:
        if self.depth < MAX_DEPTH:
            return _fields.cut(self.sample, self.settings)
        return [(Field(0, self.bits), _literal.raw(self.bits, self.extent))]

    @cached_property
    def _untried(self) -> Parts:
        return _zstd.untried(self.sample, self._cut, self.settings)

    @cached_property
    def _settled(self) -> Parts:
        return _zstd.settle(self.sample, self._cut, self.settings, self.recurring)

    @property
    def is_settled(self) -> bool:
        """Whether trials of zstd would change nothing."""
        if self._given or self.constant is not None:
            return True
        if self.is_turned_first:
            return self.below(TURN).is_settled
        return self._tried or not _zstd.wanted(self._cut, self.recurring)

    def try_zstd(self) -> None:
        """Let the literal have zstd where a trial shows it smaller."""
        if not self.is_settled:
            if self.is_turned_first:
                self.below(TURN).try_zstd()
            self._tried, self._literal = True, None


Slot = Hole | Choice
"""A place in a partial program: open, or completed."""

Join = Callable[[Sequence[Choice]], Choice]
"""From completed places to the completed operator above them."""


def placed(steps: tuple[Step, ...], size: float, toll: float, choice: Choice) -> Choice:
    """What a completed hole below the steps makes of the one above; size and toll are the steps' own."""
    node = choice.node
    for step in reversed(steps):
        node = Scan(step, node) if isinstance(step, str) else Map(step, node)
    return Choice(node, choice.size + size, choice.toll + toll)
