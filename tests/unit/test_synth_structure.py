"""What is seen in all of the data: constants, periods, quiet runs, recurring words."""

from itertools import accumulate, pairwise

import numpy as np
import pytest

from brevisfs._native import _plan
from brevisfs.dsl import (
    Add,
    BitReverse,
    Function,
    Gray,
    Huffman,
    Lit,
    Rans,
    RotR,
    ScanKind,
    Xor,
    ZigZag,
    to_text,
)
from brevisfs.dsl.reference import invert, unflatten
from brevisfs.synth import _classes, _columns, _literal, _structure, _zstd, synthesize
from brevisfs.synth._literal import inside
from brevisfs.synth._profile import SETTINGS, Profile
from brevisfs.synth._sample import Sample, from_flat, spread, to_flat, undo
from brevisfs.synth._source import Memory, Part
from tests.plans import planned, restored, stored_size


def part(words: np.ndarray, block: int = 65536) -> Part:
    return Part(Memory(words.tobytes()), 8 * words.itemsize, len(words), block)


def noise(count: int, kind: str = "<u4") -> np.ndarray:
    return np.random.default_rng(3).integers(
        0, np.iinfo(kind).max, count, dtype=np.dtype(kind).newbyteorder("=")
    )


def test_a_survey_finds_the_word_that_all_are() -> None:
    assert _structure.survey(part(np.full(1000, 7, "<u2"))).constant == 7
    words = np.full(70_000, 7, "<u2")
    words[69_999] = 8
    assert _structure.survey(part(words)).constant is None


@pytest.mark.parametrize(("first", "length"), [(0, 3000), (1000, 2500), (7001, 4999)])
@pytest.mark.parametrize("fill", ["constant", "zero low bits"])
def test_quiet_runs_are_found_to_the_word(first: int, length: int, fill: str) -> None:
    words = noise(12_000) | 1
    words[first : first + length] &= np.uint32(0xFFFFE000)
    if fill == "constant":
        words[first : first + length] = 0x3F800000
    lengths = _structure.runs(part(words), _structure.survey(part(words)))
    edges = [0, *np.cumsum(lengths).tolist()]
    assert edges == sorted({0, first, first + length, 12_000})


def test_words_that_are_alike_all_over_have_no_runs() -> None:
    words = noise(100_000) & np.uint32(0xFFFF0000)
    assert _structure.runs(part(words), _structure.survey(part(words))) == []


@pytest.mark.parametrize("length", [1, 24, 384, 1000, 6000])
def test_a_period_is_found_whatever_the_shape_says(length: int) -> None:
    words = np.tile(noise(length, "<u2"), 12)
    assert _structure.period(part(words), ()) == length
    words[-1] ^= 1
    assert _structure.period(part(words), (12, length)) is None


def test_a_period_longer_than_a_repeat_may_have_is_none() -> None:
    words = np.tile(noise((1 << 20) + 8, "u1"), 2)
    assert _structure.period(part(words), ()) is None


@pytest.mark.parametrize("function", [Xor(5), Add(9), ZigZag(), Gray(), BitReverse(), RotR(3)])
@pytest.mark.parametrize("bits", [5, 8, 16, 23, 64])
def test_map_is_undone_as_the_language_says(function: Function, bits: int) -> None:
    words = from_flat(np.random.default_rng(1).bytes(8 * bits), bits)
    assert undo(function, words, bits).tolist() == [invert(function, bits, word) for word in words.tolist()]


def test_scan_is_undone_as_the_language_says() -> None:
    words = from_flat(np.random.default_rng(1).bytes(110), 11)
    pairs = list(pairwise(words.tolist()))
    assert undo("xor", words, 11).tolist() == [before ^ after for before, after in pairs]
    assert undo("add", words, 11).tolist() == [(after - before) % 2048 for before, after in pairs]


@pytest.mark.parametrize("bits", [1, 4, 6, 8, 13, 24, 32, 40, 64])
def test_flat_bytes_and_words(bits: int) -> None:
    data = np.random.default_rng(2).bytes(9 * bits)
    words = from_flat(data, bits)
    assert words.tolist() == unflatten(data, bits)
    assert to_flat(words, bits) == data


def test_spread_takes_from_all_over() -> None:
    assert spread(10, 20) == list(range(10))
    assert spread(100, 4) == [12, 37, 62, 87]
    assert spread(5, 1) == [2]


def test_recurring_words_are_noticed() -> None:
    words = noise(5000)
    sample = Sample(32, 5000, 65536, words, (5000,))
    assert not _zstd.recurs(sample)
    words[3000:3200] = words[17:217]
    assert _zstd.recurs(sample)


def learn(words: list[_classes.Placed]) -> tuple[float, np.ndarray | None]:
    coding = _plan.Coding(6, 8, 4, 0.0, 300, 60_000, 1 << 16)
    return _classes.learn(words, coding, _literal.tolls(SETTINGS[Profile.BALANCED]))


def test_segments_are_dealt_to_the_classes_they_come_from() -> None:
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 2, 200)
    words = np.concatenate([rng.binomial(40, 0.2 if kind else 0.7, 300) for kind in kinds]).astype(np.uint8)
    placed = [(0, words[:25_000]), (25_000, words[25_000:])]
    _, lengths = learn(placed)
    assert lengths is not None
    assert len(lengths) == 2
    found = _classes.assign(placed, 6, 300, lengths)
    assert len({(kind, cls) for kind, cls in zip(kinds.tolist(), found.classes.tolist(), strict=True)}) == 2
    assert found.hists.sum() == len(words)


@pytest.mark.parametrize("profile", [Profile.BALANCED, Profile.DENSE])
def test_words_whose_row_and_column_both_tell_of_them_have_tables_by_pairs(profile: Profile) -> None:
    rng = np.random.default_rng(7)
    rows, columns = np.exp(rng.choice([-0.8, 0.8], (1000, 1))), np.exp(rng.choice([-0.8, 0.0, 0.8], 400))
    data = (rng.normal(0, 0.02, (1000, 400)) * rows * columns).astype(np.float16).tobytes()
    plan = planned(data, "F16", (1000, 400), profile)
    encodings = [node.encoding for node in inside(plan.node) if isinstance(node, Lit)]
    paired = [each for each in encodings if isinstance(each, Huffman | Rans) and each.columns]
    assert [each.segment for each in paired] == [400]
    size = stored_size(plan, data)
    assert size < 0.99 * stored_size(planned(data, "F16", (400_000,), profile), data)
    assert plan.candidates[0].size == pytest.approx(size, rel=0.002)
    assert restored(plan, data) == data


def test_pairs_that_save_little_are_left_to_dense() -> None:
    rng = np.random.default_rng(3)
    rows, columns = np.exp(rng.choice([-0.2, 0.2], (1000, 1))), np.exp(rng.choice([-0.2, 0.0, 0.2], 400))
    data = (rng.normal(0, 0.02, (1000, 400)) * rows * columns).astype(np.float16).tobytes()
    balanced = planned(data, "F16", (1000, 400), Profile.BALANCED)
    dense = planned(data, "F16", (1000, 400), Profile.DENSE)
    assert "columns=8" not in to_text(balanced.node)
    assert "columns=8" in to_text(dense.node)
    assert 0 < stored_size(balanced, data) - stored_size(dense, data) < 0.0025 * len(data)


def test_columns_that_promised_too_much_give_way_to_rows() -> None:
    # Every fourth block, which is all that is looked at, has columns of its own; the others have rows.
    rng = np.random.default_rng(3)
    looked_at = (np.arange(64) % 4 == 0)[:, None, None]
    rows = np.exp(np.where(looked_at, 0.3, 0.7) * rng.choice([-1, 1], (64, 256, 1)))
    columns = np.exp(np.where(looked_at, 0.5, 0.0) * rng.choice([-1, 1], (64, 1, 256)))
    data = (rng.normal(0, 0.02, (64, 256, 256)) * rows * columns).astype(np.float16).tobytes()
    plan = planned(data, "F16", (64 * 256, 256))
    without_tiles = synthesize(Memory(data), "F16", (64 * 256, 256), Profile.BALANCED, 1 << 16)
    assert "Transpose" not in to_text(plan.node)
    assert stored_size(plan, data) <= stored_size(without_tiles, data)


def test_segments_that_are_alike_stay_in_one_class() -> None:
    words = np.random.default_rng(4).binomial(40, 0.5, 60_000).astype(np.uint8)
    assert learn([(0, words)])[1] is None


@pytest.mark.parametrize(
    ("shape", "segment"),
    [
        ((30, 384), 384),
        ((9, 8, 40), 280),
        ((9, 8, 20, 2), 280),
        ((9, 64, 1), 256),
        ((10_000,), 1024),
        ((4, 9000), 3000),
        ((), 1024),
    ],
)
def test_a_segment_is_a_row_or_about(shape: tuple[int, ...], segment: int) -> None:
    assert _classes.segment_words(shape, 10_000 if not shape else int(np.prod(shape))) == segment


@pytest.mark.parametrize("columns", [2, 3, 20, 34, 100, 384, 1152, 4096])
@pytest.mark.parametrize("rows", [32, 130, 1000, 1536, 7919, 50_000])
def test_a_tile_is_whole_rows_on_the_grid_of_blocks(columns: int, rows: int) -> None:
    found = _columns.tile(columns, rows * columns, 65_536)
    if found is None:
        assert rows * columns < 64 or 65_536 // columns < 32
        return
    assert found.block % 64 == 0
    assert found.block <= 1 << 18
    assert found.rows >= 32
    one_block = found.block >= rows * columns
    assert found.rows == rows if one_block else found.rows * columns == found.block


def test_little_is_left_over_by_tiles() -> None:
    assert _columns.tile(384, 1536 * 384, 65_536) == _columns.Tile(384, 192 * 384, 192)
    assert _columns.tile(384, 1537 * 384, 65_536) == _columns.Tile(384, 192 * 384, 192)
    assert _columns.tile(384, 1537 * 384 + 1, 65_536) is None


@pytest.mark.parametrize("size", [2, 7, 20, 34])
def test_a_record_is_as_long_as_its_fields_say(size: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (20_000, size)).astype(np.uint8)
    rows[:, size // 2] >>= 5
    assert _columns.record(part(rows.reshape(-1)), (1_000, 20 * size))[0] == size
    assert _columns.record(part(noise(200_000, "u1")), (100, 2_000))[0] == 1


@pytest.mark.parametrize("kind", ["xor", "add"])
def test_a_scan_of_a_sample_goes_over_no_gap_between_its_runs(kind: ScanKind) -> None:
    runs = tuple(np.random.default_rng(i).integers(0, 1 << 16, 1 + 5 * i).astype("<u2") for i in range(4))
    sample = Sample(16, 1_000, 64, np.concatenate(runs), tuple(accumulate(map(len, runs))))
    change = np.bitwise_xor if kind == "xor" else np.subtract
    expected = [change(run[1:], run[:-1]).tolist() for run in runs if len(run) > 1]
    assert [run.tolist() for run in sample.undone(kind).runs] == expected
