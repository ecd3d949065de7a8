"""The search finds what an exhaustive one finds, whatever the order, and spends no more than it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from brevisfs._native import Analysis
from brevisfs.dsl import Const, Lit, Node, Raw, check, children, to_text, to_wire, walk
from brevisfs.synth import Prior, Strategy, _prior, _productions, _search
from brevisfs.synth._hole import Hole, Move
from brevisfs.synth._literal import Extent, raw
from brevisfs.synth._prior import LITERAL, PRODUCTIONS
from brevisfs.synth._profile import SETTINGS, Profile
from brevisfs.synth._sample import to_flat
from brevisfs.synth._search import State, applicable, search
from brevisfs.synth._source import Memory, Part, block_words

RNG = np.random.default_rng
EXHAUSTIVE = Strategy(10_000, guided=False)


def hole(words: np.ndarray, floating: bool = False, shape: tuple[int, ...] = (), block: int = 1024) -> Hole:
    bits = 8 * words.itemsize
    part = Part(Memory(words.tobytes()), bits, len(words), block_words(bits, len(words), 1 << 16, block))
    return Hole(part, 0, f"U{bits}", SETTINGS[Profile.BALANCED], floating=floating, shape=shape)


def sticky(count: int = 6_000) -> np.ndarray:
    """Noise but for the top bit, which changes seldom: only a Scan below a cut tells."""
    top = np.cumsum(RNG(0).random(count) < 0.01) & 1
    return (top << 15 | RNG(1).integers(0, 1 << 15, count)).astype("<u2")


def curve(count: int = 2_000) -> np.ndarray:
    """Changes that change slowly: a Scan of a Scan."""
    return np.cumsum(np.cumsum(RNG(0).integers(-3, 4, count))).astype("<i4").view("<u4")


def runs() -> np.ndarray:
    """A constant run, a slope and noise."""
    return np.concatenate(
        (
            np.full(1_000, 7),
            np.cumsum(RNG(0).integers(0, 9, 1_500)),
            RNG(1).integers(0, 1 << 31, 700) << 1 | 1,
        )
    ).astype("<u4")


def levels(count: int = 6_000) -> np.ndarray:
    """Few floats."""
    return (np.float32(0.1) * RNG(0).binomial(30, 0.5, count)).astype("<f4").view("<u4")


def pruned(count: int = 6_000) -> np.ndarray:
    """Floats of which half are zero."""
    return np.where(RNG(1).random(count) < 0.5, 0, RNG(0).normal(size=count)).astype("<f4").view("<u4")


def flipped(count: int = 6_000) -> np.ndarray:
    """Small numbers, half of them with all bits turned over."""
    return (RNG(0).integers(0, 8, count) ^ np.where(RNG(1).random(count) < 0.5, 0xFFFF, 0)).astype("<u2")


def records(size: int) -> np.ndarray:
    made = RNG(0).integers(0, 256, (80_000 // size, size)).astype(np.uint8)
    made[:, 1] = RNG(1).integers(40, 44, len(made))
    return made.reshape(-1)


def floats() -> np.ndarray:
    return (RNG(0).normal(size=6_000) * 0.05).astype("<f4").view("<u4")


STREAMS: dict[str, Callable[[], Hole]] = {
    "sticky": lambda: hole(sticky()),
    "curve": lambda: hole(curve()),
    "runs": lambda: hole(runs()),
    "period": lambda: hole(np.tile(curve(500), 8)),
    "short records": lambda: hole(records(5), shape=(40, 2_000)),
    "long records": lambda: hole(records(20), shape=(40, 2_000)),
    "floats": lambda: hole(floats(), floating=True),
    "signed": lambda: hole(np.rint(RNG(0).normal(size=6_000) * 4).astype("<i8").view("<u8")),
    "flipped": lambda: hole(flipped()),
    "around a carry": lambda: hole((0x7F80 + RNG(0).binomial(256, 0.5, 6_000)).astype("<u2")),
    "packed": lambda: hole(RNG(0).binomial(15, 0.3, 48_000).astype(np.uint8).view("<u4")),
    "levels": lambda: hole(levels()),
    "pruned": lambda: hole(pruned(), floating=True),
    "noise": lambda: hole(RNG(0).integers(0, 1 << 16, 6_000).astype("<u2")),
}


def states(root: Hole) -> Iterator[State]:
    """Every state there is."""
    assert root.part is not None
    ahead = [State("root", root.part, (root,), lambda below: below[0])]
    while ahead:
        state = ahead.pop()
        yield state
        ahead += state.successors()


@pytest.fixture(params=list(STREAMS))
def stream(request: pytest.FixtureRequest) -> Hole:
    return STREAMS[request.param]()


def moves_below(root: Hole) -> Iterator[tuple[Hole, Move]]:
    """Every production of every hole, each once."""
    ahead, seen = [root], set()
    while ahead:
        at = ahead.pop()
        if at not in seen:
            seen.add(at)
            for move in applicable(at):
                yield at, move
                ahead += [slot for slot in move.slots if isinstance(slot, Hole)]


def test_what_a_production_leaves_is_what_the_operator_takes(stream: Hole) -> None:
    """D here, on samples, and D of the native encoder give the same words, and the sizes are right."""
    for at, move in moves_below(stream):
        holes = [slot for slot in move.slots if isinstance(slot, Hole)]
        if not holes or move.part is not None:
            continue
        if move.production == "repeat":
            assert np.array_equal(np.resize(holes[0].sample.words, at.sample.count), at.sample.words)
            continue
        left = [raw(slot.bits, slot.extent) if isinstance(slot, Hole) else slot for slot in move.slots]
        made = move.join(left)
        # Sections are whole bytes; fewer words have the same children but for the last ones.
        words = at.sample.words[: at.sample.count // 8 * 8]
        analysis = Analysis(to_wire(made.node), at.bits, len(words), -(-len(words) // 64) * 64)
        places = leaves(made.node, at.bits, len(words))
        for slot, place in zip(move.slots, places, strict=True):
            below = analysis.words(0, to_flat(words, at.bits), place)
            if isinstance(slot, Hole):
                assert below.tolist() == slot.sample.words[: len(below)].tolist(), move.production
                assert len(slot.sample.words) - len(below) < 8
            else:
                assert isinstance(slot.node, Const)
                assert set(below.tolist()) == {slot.node.word}
        assert made.size == pytest.approx(move.size + sum(choice.size for choice in left))


def leaves(node: Node, bits: int, count: int) -> list[int]:
    """Prefix indexes of the nodes that have no children."""
    return [
        index for index, _, below, bits, count in walk(node, bits, count) if not children(below, bits, count)
    ]


def test_every_production_applies_to_some_stream() -> None:
    met = {move.production for make in STREAMS.values() for _, move in moves_below(make())}
    assert met == set(PRODUCTIONS) - {LITERAL}


def toggled(count: int = 6_000) -> np.ndarray:
    """One bit after another turned over, at random."""
    return np.bitwise_xor.accumulate(1 << RNG(0).integers(0, 16, count)).astype("<u2")


def chained(count: int = 6_000) -> np.ndarray:
    """Bits that are mostly as the one above."""
    turned = RNG(0).random((count, 32)) < 0.05
    return np.packbits(np.cumsum(turned, axis=1) & 1, axis=1).view(">u4").reshape(-1).astype("<u4")


def quiet(count: int = 6_000) -> np.ndarray:
    """Floats, a run of which has zero low bits."""
    made = floats()[:count].copy()
    made[: count // 2] &= np.uint32(0xFFFFE000)
    return made


WINS: dict[str, Callable[[], Hole]] = {
    "cut": STREAMS["runs"],
    "map zigzag": STREAMS["signed"],
    "map gray": lambda: hole(chained()),
    "map add": lambda: hole((0x3FFF_A000 + RNG(0).exponential(30_000, 6_000)).astype("<u4")),
    "scan xor": lambda: hole(toggled()),
    "scan add": STREAMS["runs"],
    "scan add zigzag": STREAMS["curve"],
    "concat": lambda: hole(quiet(), floating=True, shape=(60, 100)),
    "repeat": STREAMS["period"],
    "record": STREAMS["short records"],
    "bytes": STREAMS["packed"],
    "transpose": STREAMS["long records"],
    "palette": STREAMS["levels"],
    "select": STREAMS["pruned"],
}


@pytest.mark.parametrize("production", sorted(set(PRODUCTIONS) - {LITERAL, "map rotr"}))
def test_without_a_production_some_stream_takes_more(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rotation makes nothing smaller: words are put together in one pass with it.
    whole = search(WINS[production](), Strategy(16), Prior).programs[0][1].rank
    listed, simpler = _productions.moves, Hole.simpler
    monkeypatch.setattr(
        _search, "moves", lambda at: [move for move in listed(at) if move.production != production]
    )
    monkeypatch.setattr(
        Hole, "simpler", lambda at: [look for look in simpler(at) if look.production != production]
    )
    assert search(WINS[production](), Strategy(16), Prior).programs[0][1].rank > 1.001 * whole


def exhaustive(root: Hole) -> list[tuple[State, list[State]]]:
    """Every state, with those that come of it."""
    everything = list(states(root))
    return [
        (state, [later for later in everything if later.name.startswith(f"{state.name}, ")])
        for state in everything
    ]


def test_no_completion_is_below_its_states_floor(stream: Hole) -> None:
    for state, later in exhaustive(stream):
        for told in (state, *later):
            assert state.floor <= told.roll_out().rank + 1e-6, (state.name, told.name)


def test_no_trial_of_zstd_goes_below_a_states_floor() -> None:
    # Words that come again, too many for a table: there is no production, and zstd takes a third of them.
    some = RNG(0).integers(0, 1 << 32, 5_000).astype("<u4")
    stream = hole(np.concatenate((some, some[1_000:], some[2_000:])), block=16_384)
    (state,) = states(stream)
    floor, before = state.floor, state.roll_out().rank
    stream.try_zstd()
    assert floor <= state.roll_out().rank < 0.6 * before


def test_dropping_states_for_the_incumbent_loses_nothing(
    stream: Hole, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which states have zstd tried hangs on the order.
    monkeypatch.setattr(_search, "FIRST_TRIED", 0)
    monkeypatch.setattr(_search, "LATER_TRIED", 0)
    best = min(state.roll_out().rank for state in states(stream))
    for strategy in (EXHAUSTIVE, Strategy(10_000)):
        found = search(stream, strategy, Prior)
        assert found.programs[0][1].rank == min(best, raw(stream.bits, stream.extent).rank)
    assert (
        search(stream, Strategy(10_000), Prior).effort.expanded
        <= search(stream, EXHAUSTIVE, Prior).effort.expanded
    )


def test_what_the_prior_adds_for_holes_is_never_too_much(stream: Hole) -> None:
    found = search(stream, EXHAUSTIVE, Prior)
    prior = _prior.counted([*found.used(), ("U16", "cut"), ("U32", LITERAL)] * 3)
    cost, least = prior.cost, prior.least
    for state, later in exhaustive(stream):
        so_far = sum(cost(production, at.context) for at, production in state.trail)
        floor = so_far + sum(least(at.context) for at in state.holes)
        for told in later:
            closed = [(at, LITERAL) for at in told.holes]
            whole = sum(cost(production, at.context) for at, production in (*told.trail, *closed))
            assert floor <= whole + 1e-9, (state.name, told.name)


@pytest.mark.parametrize("budget", [2, 5, 10_000])
@pytest.mark.parametrize("name", list(STREAMS))
def test_the_order_in_which_productions_are_listed_is_of_no_account(
    name: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace() -> tuple[list[str], list[str], str]:
        names: list[str] = []
        plain = State.successors

        def successors(state: State) -> Iterator[State]:
            names.append(state.name)
            return plain(state)

        with monkeypatch.context() as patch:
            patch.setattr(State, "successors", successors)
            found = search(STREAMS[name](), Strategy(budget), Prior)
        return names, [to_text(choice.node) for _, choice in found.programs], found.best.name

    forwards = trace()
    listed = _productions.moves
    monkeypatch.setattr(_search, "moves", lambda at: reversed(list(listed(at))))
    assert trace() == forwards


def test_states_as_likely_as_each_other_go_by_their_roll_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = STREAMS["signed"]()
    first = next(states(stream))
    alike = [state for state in first.successors() if len(state.holes) == 1]
    lowest = min(alike, key=lambda state: state.roll_out().rank).name
    assert lowest != min(state.name for state in alike)
    names: list[str] = []
    plain = State.successors

    def successors(state: State) -> Iterator[State]:
        names.append(state.name)
        return plain(state)

    monkeypatch.setattr(State, "successors", successors)
    search(STREAMS["signed"](), Strategy(2), Prior)
    assert names == ["root", lowest]


def test_states_as_good_as_each_other_go_by_name() -> None:
    # Of a plane of single bits, xor and difference are the same.
    stream = hole(sticky())
    assert {"scan add", "scan xor"} <= {move.production for _, move in moves_below(stream)}
    found = search(stream, EXHAUSTIVE, Prior)
    assert found.best.name == "root, 0 cut, 0 scan add"
    assert "Scan(add" in to_text(found.programs[0][1].node)


def test_a_larger_budget_finds_no_worse(stream: Hole) -> None:
    ranks = []
    for budget in (1, 2, 4, 8, 64):
        found = search(stream, Strategy(budget), Prior)
        assert found.effort.expanded <= budget
        ranks.append(found.programs[0][1].rank)
    assert ranks == sorted(ranks, reverse=True)


def test_what_takes_several_productions_is_found() -> None:
    def best(root: Hole, budget: int) -> str:
        return to_text(search(root, Strategy(budget), Prior).programs[0][1].node)

    assert "1: Scan" not in best(hole(sticky()), 1)
    assert "1: Scan" in best(hole(sticky()), 8)
    assert best(hole(curve(6_000)), 8).startswith("Scan(add, Scan(add")


def test_the_words_as_they_are_are_a_program_and_the_best_one_of_noise() -> None:
    found = search(STREAMS["noise"](), Strategy(), Prior)
    assert found.programs[0][1].node == Lit(Raw())
    assert found.effort.expanded <= 1


def test_every_program_keeps_the_limits_of_the_format(stream: Hole) -> None:
    for part, choice in search(stream, EXHAUSTIVE, Prior).programs:
        check(choice.node, part.bits, part.count)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    held = _search._held

    def watched(frontier: list[State]) -> int:
        most.append(held(frontier))
        return most[-1]

    monkeypatch.setattr(_search, "_held", watched)
    plenty = search(hole(curve()), Strategy(64), Prior)
    assert max(most) > 50_000
    monkeypatch.setattr(_search, "OPEN_BYTES", 0)
    little = search(hole(curve()), Strategy(64), Prior)
    assert little.effort.expanded < plenty.effort.expanded
    assert little.programs[0][1].rank < raw(32, Extent(2_000, 1024)).rank


def test_a_prior_moves_what_is_found_first_and_not_what_is_found(stream: Hole) -> None:
    best = search(stream, Strategy(10_000), Prior).programs[0][1]
    odd = _prior.counted(
        (at.context, production) for at, _ in moves_below(stream) for production in PRODUCTIONS[6:]
    )
    assert search(stream, Strategy(10_000), lambda: odd).programs[0][1].rank == best.rank


def test_a_prior_leads_to_the_program_it_has_seen() -> None:
    known = search(hole(curve(6_000)), Strategy(16), Prior)
    seen = _prior.counted(known.used() * 50)
    assert len(known.best.trail) > 1
    least = known.programs[0][1].rank
    needed = [
        next(budget for budget in range(1, 17) if _rank(budget, prior) == least) for prior in (Prior(), seen)
    ]
    assert needed[1] <= len(known.best.trail)
    assert needed[0] > needed[1]


def _rank(budget: int, prior: Prior) -> float:
    return search(hole(curve(6_000)), Strategy(budget), lambda: prior).programs[0][1].rank


def test_a_prior_is_only_asked_where_there_is_a_choice() -> None:
    def refuse() -> Prior:
        raise AssertionError("nothing to choose")

    assert search(hole(curve()), Strategy(1), refuse).effort.expanded == 1
    assert search(STREAMS["noise"](), Strategy(), refuse).effort.expanded <= 1
