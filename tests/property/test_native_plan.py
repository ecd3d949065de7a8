"""Native planning finds what plain numpy works out (tests/pricing.py)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from brevisfs._native import Analysis, _plan
from brevisfs._native._plan import Way
from brevisfs.dsl import Lit, Merge, Node, Raw, to_wire
from brevisfs.synth import _fields, _literal, _times
from brevisfs.synth._literal import Extent
from brevisfs.synth._profile import FEW_TABLES, SETTINGS, Profile, Settings
from brevisfs.synth._sample import Sample, container
from tests import pricing

QUICK = settings(max_examples=60, deadline=None)
PROFILES = st.sampled_from(list(Profile)).map(SETTINGS.__getitem__)
SEEDS = st.integers(0, 2**32 - 1)
CODERS = Way.HUFFMAN, Way.RANS


def words(rng: np.random.Generator, bits: int, count: int) -> NDArray[Any]:
    """Words of one of several kinds: noise, bell curves, few values, bits that rarely vary, still runs."""
    top = np.nextafter(2.0**bits, 0)
    kind = rng.integers(5)
    if kind == 0:
        values = rng.uniform(0, top, count)
    elif kind == 1:
        values = np.clip(rng.normal(rng.uniform(0, top), top * rng.uniform(0.001, 0.3), count), 0, top)
    elif kind == 2:
        values = rng.choice(rng.uniform(0, top, rng.integers(1, 5)), count)
    elif kind == 3:
        values = np.where(rng.random(count) < 0.03, rng.uniform(0, top, count), np.floor(top / 3))
    else:
        values = np.repeat(rng.uniform(0, top, count), rng.integers(1, 500))[:count]
    whole = np.floor(values).astype(np.uint64)
    return whole.astype(container(bits))


def counts(rng: np.random.Generator, bits: int, rows: int = 1) -> NDArray[np.int64]:
    """Histograms, no row of which is empty."""
    hists = (rng.dirichlet(np.full(1 << bits, rng.uniform(0.02, 3)), rows) * 10 ** rng.uniform(0, 6)).astype(
        int
    )
    hists[np.arange(rows), rng.integers(0, 1 << bits, rows)] += 1
    return np.asarray(hists, np.int64)


@given(SEEDS, st.integers(1, 8), st.integers(1, 5))
@QUICK
def test_costs_of_histograms(seed: int, bits: int, rows: int) -> None:
    hists = counts(np.random.default_rng(seed), bits, rows)
    assert _plan.entropy_bits(hists) == pytest.approx(
        sum(map(pricing.entropy_bits, hists)), rel=1e-9, abs=1e-6
    )
    for longest in (8, 11, 15):
        assert _plan.huffman_bits(hists, longest) == pricing.huffman_bits(hists, longest)
    assert _plan.huffman_table_bytes(hists) == pricing.huffman_table_bytes(hists)
    assert _plan.rans_bits(hists[0], 12) == pytest.approx(pricing.rans_bits(hists[0], 12), rel=1e-9, abs=1e-6)
    assert _plan.rans_table_bytes(hists[0], 12) == pricing.rans_table_bytes(hists[0], 12)


@given(SEEDS, st.integers(1, 8))
@example(536870912, 3)  # whose strings are so many of a weight that a floor between them was not found
@settings(max_examples=15, deadline=None)
def test_tunstall_is_priced_as_by_sorting_all_strings(seed: int, bits: int) -> None:
    hist = counts(np.random.default_rng(seed), bits)[0]
    assert _plan.tunstall_bits(hist, 12) == pytest.approx(pricing.tunstall_bits(hist, 12), rel=0.01)


@given(SEEDS, st.integers(1, 8), st.integers(1, 1 << 20), PROFILES)
@example(539, 3, 866_657, SETTINGS[Profile.DENSE])  # whose few other words are cheapest listed
@QUICK
def test_a_completion_is_the_best_one(seed: int, bits: int, count: int, profile: Settings) -> None:
    hist = counts(np.random.default_rng(seed), bits)[0]
    extent = Extent(count, 1 << 16)
    least = _plan.floor(hist, bits, count, extent.block, _literal.tolls(profile))
    assert least == pytest.approx(pricing.least(hist, extent, profile), rel=1e-9)
    found, best = (
        _literal.complete(hist, bits, extent, profile),
        pricing.complete(hist, bits, extent, profile),
    )
    assert found.rank == pytest.approx(best.rank, rel=0.004)
    assert found.node == best.node or found.rank == pytest.approx(best.rank, rel=0.002)


@given(SEEDS, st.integers(2, 8), st.integers(1, 16), PROFILES)
@QUICK
def test_several_tables_are_priced_as_one_by_one(seed: int, bits: int, rows: int, profile: Settings) -> None:
    hists, extent = counts(np.random.default_rng(seed), bits, rows), Extent(200_000, 1 << 16)
    huffman = pricing.huffman(hists, bits, extent, profile, 384 if rows > 1 else 0)
    found = _literal.coded(Way.HUFFMAN, hists, bits, extent, profile, 384)
    assert found.node == huffman.node
    assert found.rank == pytest.approx(huffman.rank, rel=1e-9)
    rans = pricing.rans(hists, bits, extent, profile, 384 if rows > 1 else 0)
    found = _literal.coded(Way.RANS, hists, bits, extent, profile, 384)
    assert found.node == rans.node
    assert found.rank == pytest.approx(rans.rank, rel=1e-9)


@given(
    SEEDS,
    st.sampled_from([1, 3, 4, 8, 11, 16, 16, 23, 32, 40]),
    st.sampled_from([1, 63, 300, 20_000]),
    PROFILES,
)
@settings(max_examples=25, deadline=None)
def test_a_cut_is_the_best_of_all(seed: int, bits: int, count: int, profile: Settings) -> None:
    sample = Sample(bits, 3 * count, 1 << 16, words(np.random.default_rng(seed), bits, count), (count,))
    found = _fields.merged(_fields.cut(sample, profile), Extent(sample.count, sample.block), profile)
    best = pricing.split(sample, profile)
    assert found.rank == pytest.approx(best.rank, rel=0.004)  # both find floors of Tunstall by trial
    assert widths(found.node) == widths(best.node) or found.rank == pytest.approx(best.rank, rel=0.001)


def widths(node: Node) -> tuple[int, ...]:
    return node.widths if isinstance(node, Merge) else ()


@given(SEEDS, st.integers(1, 64), st.integers(1, 2000))
@QUICK
def test_counts_and_varying_bits(seed: int, bits: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    stream = words(rng, bits, count)
    low = int(rng.integers(bits))
    width = int(rng.integers(1, min(16, bits - low) + 1))
    assert _plan.count(stream, low, width).tolist() == pricing.count(stream, low, width).tolist()
    chunk = int(rng.integers(1, 100))
    starts = np.arange(0, count, chunk)
    any_set, all_set = _plan.survey(stream, chunk)
    assert any_set.tolist() == np.bitwise_or.reduceat(stream, starts).tolist()
    assert all_set.tolist() == np.bitwise_and.reduceat(stream, starts).tolist()
    planes = [pricing.count(stream, at, min(8, bits - at)) for at in range(0, bits, 8)]
    assert _plan.plane_bits(stream, bits) == pytest.approx(
        [pricing.entropy_bits(hist) for hist in planes], abs=1e-6
    )


@given(SEEDS, st.sampled_from([1, 4, 8, 16, 23, 32, 64]), st.integers(1, 800))
@QUICK
def test_what_recurs(seed: int, bits: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    stream = words(rng, bits, count)
    if rng.random() < 0.5:
        stream[count // 2 :] = stream[: count - count // 2]
    reach = int(rng.integers(1, 64 // bits + 1))
    begun = [tuple(stream[at : at + reach].tolist()) for at in range(count - reach + 1)]
    assert _plan.recurring(stream, bits, reach) == len(begun) - len(set(begun))
    pattern = min(8, count)
    again = [
        at for at in range(1, count - pattern + 1) if (stream[at : at + pattern] == stream[:pattern]).all()
    ]
    assert _plan.recurrences(stream, pattern, 5) == again[:5]


@given(SEEDS, st.integers(1, 16), st.integers(1, 4), st.integers(1, 300))
@QUICK
def test_bits_of_bytes_by_place(seed: int, size: int, times: int, at: int) -> None:
    runs = words(np.random.default_rng(seed), 8, 1000).reshape(2, 500)
    starts = [at, 3 * at]
    hist = np.zeros((size, 256), np.int64)
    for start, run in zip(starts, runs, strict=True):
        np.add.at(hist, ((np.arange(500) + start) % size, run), 1)
    missed = sum(max(0, int(np.count_nonzero(row)) - 1) for row in hist) / (2 * np.log(2))
    expected = sum(pricing.entropy_bits(row) for row in hist) + missed
    found = _plan.place_bits(runs.reshape(-1), starts, times * size, [size, times * size])
    assert found[0] == pytest.approx(expected)


@given(
    SEEDS,
    st.integers(1, 8),
    st.sampled_from([16, 100, 384]),
    st.integers(1, 150),
    st.sampled_from([4, 8, 16]),
)
@settings(max_examples=25, deadline=None)
def test_classes_are_those_of_k_means_and_merging(
    seed: int, bits: int, segment: int, rows: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 1 << bits, 5)
    scale = (1 << bits) * rng.uniform(0.02, 0.4)
    values = rng.normal(rng.choice(centres, rows)[:, None], scale, (rows, segment))
    segments = np.clip(values, 0, (1 << bits) - 1).astype(np.uint8)
    profile, extent = SETTINGS[Profile.DENSE], Extent(rows * segment, 1 << 16)

    def rank(hists: NDArray[np.int64]) -> float:
        coded = [_literal.coded(way, hists, bits, extent, profile, segment).rank for way in CODERS]
        return min(coded) + (10.0 if len(hists) > FEW_TABLES else 0.0)

    least, lengths = pricing.learn(segments, bits, most, rank)
    coding = _plan.Coding(bits, most, FEW_TABLES, 10.0, segment, extent.count, extent.block)
    reached, found = _plan.learn(segments, coding, _literal.tolls(profile))
    assert reached == pytest.approx(least, rel=1e-9)
    coarse = 1 << min(bits, _plan.COARSE_BITS)
    assert found[:, :coarse].tolist() == lengths.tolist()
    flat = segments.reshape(-1)[: rows * segment - segment // 3]
    hists = np.zeros((len(found), 1 << bits), np.uint64)
    classes = _plan.assign(flat, segment, bits, found, hists)
    for at, of in enumerate(classes.tolist()):
        row = pricing.leading(flat[at * segment : (at + 1) * segment][None], bits)
        assert of == pricing.nearest(row, lengths.astype(float))[0]
    assert hists.sum(axis=0).tolist() == np.bincount(flat, minlength=1 << bits).tolist()


def rows_and_columns(seed: int, bits: int, rows: int, columns: int) -> NDArray[np.uint8]:
    """Words, one segment a row, whose spread depends on their row and on their column."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0, 1, (rows, 1)) + rng.normal(0, 1, columns)) * 2 ** (bits - 4)
    words = rng.normal(2 ** (bits - 1), scale, (rows, columns))
    return np.clip(words, 0, (1 << bits) - 1).astype(np.uint8)


@given(
    SEEDS,
    st.integers(1, 8),
    st.sampled_from([16, 100, 384]),
    st.integers(1, 150),
    st.sampled_from([4, 8, 16]),
)
@settings(max_examples=25, deadline=None)
def test_pairs_are_those_of_k_means_in_turns_and_merging(
    seed: int, bits: int, segment: int, rows: int, most: int
) -> None:
    segments = rows_and_columns(seed, bits, rows, segment)
    profile, extent = SETTINGS[Profile.DENSE], Extent(rows * segment, 1 << 16)

    def rank(hists: NDArray[np.int64], of_rows: int, of_columns: int) -> float:
        tables = len(hists)
        coded = [_literal.coded(way, hists, bits, extent, profile, segment).rank for way in CODERS]
        classes = segment * (of_columns - 1).bit_length() + of_rows * of_columns * (tables - 1).bit_length()
        fewer = ((of_rows - 1).bit_length() - (tables - 1).bit_length()) * rows
        toll = profile.toll * extent.count * _times.PAIRED / 8
        return min(coded) + (classes + fewer) / 8 + toll + (10.0 if tables > FEW_TABLES else 0.0)

    places, expected = pricing.learn_pairs(segments, bits, rank, most)
    coding = _plan.Coding(bits, most, FEW_TABLES, 10.0, segment, extent.count, extent.block)
    found = _plan.learn_pairs(segments, coding, _literal.tolls(profile))
    coarse = 1 << min(bits, _plan.COARSE_BITS)
    of_use = [each for each in expected if each[2].max() > 0 and each[2].shape[1] > 1]
    for (reached, pairs), (least, lengths, tables) in zip(found, of_use, strict=True):
        assert reached == pytest.approx(least, rel=1e-9)
        assert pairs.lengths[:, :coarse].tolist() == lengths.tolist()
        assert pairs.places.tolist() == places.tolist()
        assert pairs.pairs.tolist() == tables.tolist()
        assert pairs.tables == tables.max() + 1


def test_no_pairs_are_looked_for_where_places_save_less_than_is_asked() -> None:
    segments = rows_and_columns(1, 6, 300, 100)
    tolls = _literal.tolls(SETTINGS[Profile.DENSE])
    coding = _plan.Coding(6, 8, FEW_TABLES, 10.0, 100, segments.size, 1 << 16)
    free = _plan.learn_pairs(segments, coding, tolls)
    assert len(free) == 2
    for asked, found in ((100.0, True), (segments.size / 2, False)):
        again = _plan.learn_pairs(segments, coding._replace(asked=asked), tolls)
        assert [rank for rank, _ in again] == [rank for rank, _ in free if found]


@given(SEEDS, st.integers(1, 8), st.integers(1, 40), st.integers(1, 300), st.integers(0, 299))
@QUICK
def test_words_are_counted_by_the_table_of_their_pair(
    seed: int, bits: int, rows: int, segment: int, missing: int
) -> None:
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 1 << bits, rows * segment - missing % segment).astype(np.uint8)
    classes = rng.integers(0, 3, rows).astype(np.uint8)
    places, tables = rng.integers(0, 5, segment), rng.integers(0, 4, (3, 5))
    pairs = _plan.Pairs(4, np.zeros((3, 64), np.int16), places.astype(np.uint8), tables.astype(np.uint8))
    hists = np.zeros((4, 1 << bits), np.uint64)
    _plan.count_pairs(flat, segment, bits, classes, pairs, hists)
    at = np.arange(len(flat))
    table = tables[classes[at // segment], places[at % segment]]
    expected = np.bincount(table << bits | flat, minlength=4 << bits).reshape(4, -1)
    assert hists.tolist() == expected.tolist()


@given(SEEDS, st.integers(2, 64), st.lists(st.integers(2, 300), min_size=1, max_size=5))
@QUICK
def test_looks_are_the_entropy_of_changed_words(seed: int, bits: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    stream = words(rng, bits, sum(lengths))
    ends = np.cumsum(lengths)
    some = int(stream[0])
    changes: list[list[tuple[int, int]]] = [[], [(2, 0)], [(1, some)], [(-1, 0)], [(-2, 0), (2, 0)]]
    looks = _plan.looks(stream, ends.tolist(), bits, changes)
    for steps, planes in zip(changes, looks, strict=True):
        pieces = [stream[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        for function, word in steps:
            pieces = [_plan.undo(piece, bits, function, word) for piece in pieces]
        changed = np.concatenate(pieces)
        assert (planes * len(changed)).tolist() == pytest.approx(_plan.plane_bits(changed, bits).tolist())


@given(SEEDS, st.integers(1, 3000), st.integers(1, 10), st.integers(2, 300))
@QUICK
def test_words_by_column(seed: int, count: int, blocks: int, columns: int) -> None:
    stream = words(np.random.default_rng(seed), 8, count)
    block = 64 * blocks
    expected: list[int] = []
    for at in range(0, count, block):
        some = stream[at : at + block]
        whole = len(some) // columns * columns
        expected += [*some[:whole].reshape(-1, columns).T.reshape(-1).tolist(), *some[whole:].tolist()]
    assert _plan.by_column(stream, block, columns).tolist() == expected


@pytest.mark.parametrize("bits", [4, 16, 23])
def test_words_of_several_blocks_are_those_of_each(bits: int) -> None:
    count, block = 1000, 128
    data = np.random.default_rng(bits).integers(0, 256, count * bits // 8, np.uint8)
    analysis = Analysis(to_wire(Merge((1, bits - 1), (Lit(Raw()), Lit(Raw())))), bits, count, block)
    step = block * bits // 8
    each = [analysis.words(at, data[at * step : (at + 1) * step], 2) for at in range(2, 8)]
    assert analysis.words(2, data[2 * step :], 2).tolist() == np.concatenate(each).tolist()


def test_a_segment_that_suits_several_classes_takes_the_first() -> None:
    lengths = np.full((4, 1 << _plan.COARSE_BITS), 600, np.int16)
    lengths[1:3] = 500
    hists = np.zeros((4, 256), np.uint64)
    assert _plan.assign(np.arange(200, dtype=np.uint8), 50, 8, lengths, hists).tolist() == [1] * 4


def test_words_that_cannot_be_planned_with_are_refused() -> None:
    balanced = _literal.tolls(SETTINGS[Profile.BALANCED])
    stream = np.arange(600, dtype=np.uint8)
    coding = _plan.Coding(8, 8, 4, 0.0, 300, 600, 64)
    refused: list[Any] = [
        lambda: _plan.complete(np.zeros(4), 2, 10, 64, balanced),
        lambda: _plan.complete(np.ones(4), 2, 0, 64, balanced),
        lambda: _plan.coded(Way.HUFFMAN, np.ones((2, 4)), 2, 0, 10, 64, balanced),
        lambda: _plan.coded(Way.TUNSTALL, np.ones((2, 4)), 2, 5, 10, 64, balanced),
        lambda: _plan.coded(Way.RAW, np.ones(4), 2, 0, 10, 64, balanced),
        lambda: _plan.split(stream, 65, 10, 64, balanced),
        lambda: _plan.split(stream[:0], 8, 10, 64, balanced),
        lambda: _plan.count(stream, 8, 1),
        lambda: _plan.undo(stream, 8, 6),
        lambda: _plan.undo(stream, 8, 0, 256),
        lambda: _plan.recurrences(stream[:4], 8, 8),
        lambda: _plan.recurring(stream, 8, 9),
        lambda: _plan.learn(stream[:599], coding, balanced),
        lambda: _plan.learn(stream, coding._replace(width=5), balanced),
        lambda: _plan.learn_pairs(stream[:599], coding, balanced),
        lambda: _plan.learn_pairs(stream, coding._replace(width=5), balanced),
        lambda: _plan.assign(stream, 0, 8, np.zeros((2, 64), np.int16), np.zeros((2, 256), np.uint64)),
        lambda: _plan.assign(stream, 300, 5, np.zeros((2, 64), np.int16), np.zeros((2, 32), np.uint64)),
    ]
    for call in refused:
        with pytest.raises((ValueError, ZeroDivisionError)):
            call()
