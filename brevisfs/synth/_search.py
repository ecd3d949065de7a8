"""The search: bounded A* over partial programs.

A state is a program with places that are completed and holes that are not. Expanding it applies each
production that applies to each of its holes; the holes before that one are completed by literals, so
that no program is come by twice. Each state is also told as a whole program, its roll-out, with all its
holes completed by literals. The best of these is the incumbent, at first the words as they are, and a
state that cannot get below it is dropped.

States are expanded in the order of g + h: the bits that their productions have under the prior, and the
least that completing their holes adds. That decides how soon a program is found, never whether. Ties go
to the lower roll-out, then to the state's name, so the order does not hang on how states were come by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from brevisfs.dsl import to_text
from brevisfs.dsl._check import MAX_NODES
from brevisfs.synth import _steps
from brevisfs.synth._hole import Hole, Join, Move, Slot
from brevisfs.synth._literal import NODE_BYTES, Choice, inside, raw
from brevisfs.synth._prior import LITERAL, Prior
from brevisfs.synth._productions import moves
from brevisfs.synth._source import Part

OPEN_BYTES = 512 << 20
"""Memory that the words of open states may take; beyond it the states that are last in order go."""

FIRST_TRIED, LATER_TRIED = 2, 1
"""How many states of an expansion have zstd tried on their words, which takes longer than all the rest."""

CLOSE = 1.1
"""States further from the incumbent than this have no trials."""

ADAPTIVE_BYTES = 1 << 15
"""Sections from which a second expansion may pay."""

PATIENCE = 3
PAYING = 0.0005
"""So many expansions on end that gain less than this share of the section are the last."""

MOST_EXPANSIONS = 32


@dataclass(frozen=True, slots=True)
class Strategy:
    """`budget` states are expanded at most; None: as many as seem to pay.

    If not `guided`, states are taken in the order of g alone and none is dropped for the incumbent.
    """

    budget: int | None = None
    guided: bool = True


ADAPTIVE = Strategy()


@dataclass(frozen=True, slots=True)
class Effort:
    """What was searched: states expanded, states told as programs, states dropped for the incumbent."""

    expanded: int
    told: int
    dropped: int


@dataclass(frozen=True, eq=False)
class State:
    """A partial program; `nodes` and `size` are the operators that are placed and their bytes.

    `trail` are the productions that led here, `name` tells them and where each was applied.
    """

    name: str
    part: Part
    slots: tuple[Slot, ...]
    join: Join
    nodes: int = 0
    size: float = 0.0
    trail: tuple[tuple[Hole, str], ...] = ()

    def roll_out(self) -> Choice:
        """The program whose holes are completed by literals, as these are now."""
        return self.join([_literal(slot) for slot in self.slots])

    @property
    def floor(self) -> float:
        """A rank that no completion goes below. It rises when holes turn out to have no productions."""
        return self.size + sum(map(_floor, self.slots))

    @property
    def holes(self) -> list[Hole]:
        """The open places, in order."""
        return [slot for slot in self.slots if isinstance(slot, Hole)]

    def successors(self) -> Iterator[State]:
        """A state for each production of each hole; the holes before it are completed."""
        for at, slot in enumerate(self.slots):
            if isinstance(slot, Hole):
                for move in applicable(slot):
                    state = self._after(at, slot, move)
                    if state.nodes + len(state.slots) <= MAX_NODES:
                        yield state

    def _after(self, at: int, hole: Hole, move: Move) -> State:
        before = self.slots[:at]
        closed = tuple((slot, LITERAL) for slot in before if isinstance(slot, Hole))
        return State(
            f"{self.name}, {at} {move.production}",
            move.part or self.part,
            (*map(_literal, before), *move.slots, *self.slots[at + 1 :]),
            _Inserted(self.join, at, len(move.slots), move.join),
            self.nodes + move.nodes,
            self.size + move.size,
            (*self.trail, *closed, (hole, move.production)),
        )


@dataclass(frozen=True, slots=True)
class _Inserted:
    """The join of a state whose place `at` was filled with an operator over `width` places."""

    outer: Join
    at: int
    width: int
    inner: Join

    def __call__(self, below: Sequence[Choice]) -> Choice:
        end = self.at + self.width
        return self.outer([*below[: self.at], self.inner(below[self.at : end]), *below[end:]])


@dataclass(frozen=True, slots=True)
class Found:
    """Whole programs for the words of a part, the best first, and the state that the best one came of."""

    programs: list[tuple[Part, Choice]]
    best: State
    effort: Effort

    def used(self) -> list[tuple[str, str]]:
        """(context, production) of each production of the best program."""
        closed = ((hole, LITERAL) for hole in self.best.holes)
        return [(hole.context, production) for hole, production in (*self.best.trail, *closed)]


def search(root: Hole, strategy: Strategy, prior: Callable[[], Prior]) -> Found:
    """Programs for the root's words, all of which lie in a source. `prior` is asked only if it matters."""
    assert root.part is not None
    return _Search(root, root.part, strategy, prior).run()


def applicable(hole: Hole) -> list[Move]:
    """The productions that apply to a hole, but the literal."""
    if hole.moves is None:
        hole.moves = list(moves(hole))
    return hole.moves


Key = tuple[float, float, str]


class _Order:
    """Programs by rank, and by their text where that is the same."""

    def __init__(self, entry: tuple[Part, Choice]) -> None:
        self._choice = entry[1]

    def __lt__(self, other: _Order) -> bool:
        mine, others = self._choice, other._choice
        return mine.rank < others.rank or (
            mine.rank == others.rank and to_text(mine.node) < to_text(others.node)
        )


class _Search:
    def __init__(self, root: Hole, part: Part, strategy: Strategy, prior: Callable[[], Prior]) -> None:
        self._root, self._strategy, self._prior = root, strategy, prior
        self._best = State("root", part, (root,), _only)
        self._least = raw(part.bits, root.extent)
        self._programs = {(part.bits, self._least.node): (part, self._least)}
        self._keys: dict[State, Key] = {}
        self._ranks: dict[State, float] = {}
        self._nbytes = part.nbytes
        self._expanded = self._told = self._dropped = self._idle = 0

    def run(self) -> Found:
        """Expands states until none is left or the budget is spent."""
        self._tell([self._best])
        frontier = [self._best]
        while frontier and self._goes_on():
            state = frontier[0] if len(frontier) == 1 else min(frontier, key=self._key)
            frontier.remove(state)
            if self._strategy.guided and state.floor >= self._least.rank:
                self._dropped += 1
                continue
            before = self._least.rank
            fresh = list(state.successors())
            self._tell(fresh)
            frontier += fresh
            self._expanded += 1
            self._idle = 0 if before - self._least.rank > PAYING * self._nbytes else self._idle + 1
            self._bound_memory(frontier)
        effort = Effort(self._expanded, self._told, self._dropped)
        programs = sorted(self._programs.values(), key=_Order)
        return Found(programs, self._best, effort)

    def _goes_on(self) -> bool:
        if self._strategy.budget is not None:
            return self._expanded < self._strategy.budget
        if self._expanded == 1:
            return self._nbytes >= ADAPTIVE_BYTES and _is_hopeful(self._root)
        return self._expanded < MOST_EXPANSIONS and self._idle < PATIENCE

    def _tell(self, fresh: list[State]) -> None:
        """Takes in the roll-outs of states; the best few have zstd tried on them."""
        told = [(state.roll_out(), state) for state in fresh]
        told.sort(key=lambda entry: (entry[0].rank, entry[1].name))
        untried = [
            hole
            for choice, state in told[: FIRST_TRIED if self._expanded < 2 else LATER_TRIED]
            if choice.rank < CLOSE * self._least.rank
            for hole in state.holes
            if not hole.is_settled
        ]
        for hole in untried:
            hole.try_zstd()
        for choice, state in told:
            self._take(state, state.roll_out() if untried else choice)

    def _take(self, state: State, choice: Choice) -> None:
        self._ranks[state] = choice.rank
        if sum(1 for _ in inside(choice.node)) <= MAX_NODES:
            self._told += 1
            known = self._programs.setdefault((state.part.bits, choice.node), (state.part, choice))
            if choice.rank < known[1].rank:
                self._programs[state.part.bits, choice.node] = (state.part, choice)
            # Of derivations of one program the longest tells a prior most.
            further = choice.node == self._least.node and len(state.trail) > len(self._best.trail)
            if choice.rank < self._least.rank or further:
                self._least, self._best = choice, state

    def _key(self, state: State) -> Key:
        if state not in self._keys:
            prior, guided = self._prior(), self._strategy.guided
            cost = sum(prior.cost(production, hole.context) for hole, production in state.trail)
            further = sum(prior.least(hole.context) for hole in state.holes) if guided else 0.0
            self._keys[state] = (cost + further, self._ranks[state] if guided else 0.0, state.name)
        return self._keys[state]

    def _bound_memory(self, frontier: list[State]) -> None:
        while len(frontier) > 1 and _held(frontier) > OPEN_BYTES:
            frontier.remove(max(frontier, key=self._key))


def _only(below: Sequence[Choice]) -> Choice:
    return below[0]


def _literal(slot: Slot) -> Choice:
    return slot.literal if isinstance(slot, Hole) else slot


def _floor(slot: Slot) -> float:
    if isinstance(slot, Choice):
        return slot.rank
    # Without productions only the literal is left, and what trials may make of it; with them anything.
    return slot.literal.rank if slot.moves == [] and slot.is_settled else NODE_BYTES


def _is_hopeful(root: Hole) -> bool:
    """Whether more than the cut that any words have came of the first expansion, or may come of another."""
    usual = all(move.production in ("cut", "map rotr") for move in applicable(root))
    return not usual or (root.constant is None and _steps.hints(root.looks))


def _held(frontier: list[State]) -> int:
    """Bytes of the words that the states hold."""
    holes = {hole for state in frontier for hole in state.holes}
    holes.update(hole for state in frontier for hole, _ in state.trail)
    return sum(hole.held for hole in holes)
