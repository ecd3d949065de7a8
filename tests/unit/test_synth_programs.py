"""Structure shows in the program that is found, and no program is worse than the words as they are."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from brevisfs.dsl import (
    Const,
    Huffman,
    Lit,
    Map,
    Merge,
    Palette,
    Rans,
    Raw,
    Repeat,
    RotR,
    Scan,
    Select,
    to_text,
    walk,
)
from brevisfs.synth import Candidate, Memory, Plan, Profile, synthesize
from tests.plans import planned, restored, stored_size

RNG = np.random.default_rng


def gaussian(count: int, seed: int = 0, scale: float = 0.05) -> np.ndarray:
    return (RNG(seed).normal(size=count) * scale).astype("<f4")


def bf16(floats: np.ndarray) -> np.ndarray:
    return (floats.view("<u4") >> 16).astype("<u2")


def leaves(plan: Plan) -> list[object]:
    return [
        node for _, _, node, _, _ in walk(plan.node, plan.bits, plan.count) if isinstance(node, Lit | Const)
    ]


def test_one_word_is_a_const() -> None:
    plan = planned(np.full(100_000, 1.0, "<f4").tobytes(), "F32", (100_000,))
    assert plan.node == Const(0x3F800000)
    assert plan.shared == b""


@pytest.mark.parametrize("dtype", ["<i8", "<i4", "<u2", "u1"])
def test_a_ramp_is_a_scan_of_one_step(dtype: str) -> None:
    data = (np.arange(512) * 3).astype(dtype).tobytes()
    name = {"<i8": "I64", "<i4": "I32", "<u2": "U16", "u1": "U8"}[dtype]
    assert planned(data, name, (1, 512)).node == Scan("add", Const(3))


def test_equal_rows_are_a_repeat() -> None:
    row = gaussian(384)
    plan = planned(np.tile(row, 64).tobytes(), "F32", (64, 384))
    assert isinstance(plan.node, Repeat)
    assert plan.node.times == 64


def test_a_period_beyond_a_block_is_coded_as_one() -> None:
    # The change from one block of the whole to the next is a word of the Scan inside.
    half = np.cumsum(RNG(0).integers(0, 4, 100_000)).astype("<u4")
    half[65_536:] += 12_345_678
    data = np.tile(half, 2).tobytes()
    plan = planned(data, "U32", (2, 100_000))
    assert isinstance(plan.node, Repeat)
    assert restored(plan, data) == data


def test_an_upcast_has_constant_low_bits() -> None:
    floats = bf16(gaussian(50_000)).astype("<u4") << 16
    plan = planned(floats.tobytes(), "F32", (50_000,))
    assert re.search(r"16: Const 0", to_text(plan.node))


def test_a_float_is_cut_into_exponent_and_rest() -> None:
    plan = planned(bf16(gaussian(200_000)).tobytes(), "BF16", (500, 400))
    assert isinstance(plan.node, Map)
    assert plan.node.function == RotR(1)
    assert isinstance(plan.node.child, Merge)
    literals = [leaf for leaf in leaves(plan) if isinstance(leaf, Lit)]
    coded = [leaf for leaf in literals if isinstance(leaf.encoding, Huffman | Rans)]
    assert len(coded) == 1
    assert Lit(Raw()) in leaves(plan)
    assert stored_size(plan, bf16(gaussian(200_000)).tobytes()) < 0.68 * 400_000


def test_rare_high_bits_do_not_widen_the_coded_field() -> None:
    floats = gaussian(200_000)
    floats[::5_000] = 1e6
    plan = planned(bf16(floats).tobytes(), "BF16", (200_000,))
    assert "sparse" in to_text(plan.node)
    assert restored(plan, bf16(floats).tobytes()) == bf16(floats).tobytes()


def test_rows_with_zero_low_bits_are_a_part_of_their_own() -> None:
    floats = gaussian(4_000 * 384)
    floats.view("<u4")[10 * 384 : 900 * 384] &= np.uint32(0xFFFFE000)
    text = to_text(planned(floats.tobytes(), "F32", (4_000, 384)).node)
    assert text.startswith("Concat(3840: ")
    assert "13: Const 0" in text


def test_signed_numbers_near_zero_are_zigzagged() -> None:
    numbers = np.rint(RNG(0).normal(size=50_000) * 1_000).astype("<i8")
    text = to_text(planned(numbers.tobytes(), "I64", (50_000,)).node)
    assert "zigzag" in text
    assert re.search(r"5\d: Const 0", text)


def test_few_words_are_a_palette() -> None:
    scale = np.float32(0.0123)
    for levels, count in ((16, 3_000), (256, 60_000), (2_000, 60_000)):
        floats = (scale * RNG(0).binomial(levels, 0.5, count)).astype("<f4")
        plan = planned(floats.tobytes(), "F32", (count // 100, 100))
        assert isinstance(plan.node, Palette)
        assert len(plan.node.words) == len(np.unique(floats))
        assert restored(plan, floats.tobytes()) == floats.tobytes()


def test_a_palette_has_words_that_no_sample_has() -> None:
    floats = (np.float32(0.1) * RNG(0).binomial(40, 0.5, 2_500_000)).astype("<f4")
    floats[[16_390, -1]] = 77.0, -5.0
    plan = planned(floats.tobytes(), "F32", (2_500_000,))
    assert isinstance(plan.node, Palette)
    assert restored(plan, floats.tobytes()) == floats.tobytes()


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_pruned_weights_are_selected(dtype: str, profile: Profile) -> None:
    floats = np.where(RNG(1).random(200_000) < 0.6, 0, gaussian(200_000)).astype("<f4")
    data = {"F32": floats.tobytes(), "F16": floats.astype("<f2").tobytes(), "BF16": bf16(floats).tobytes()}[
        dtype
    ]
    plan = planned(data, dtype, (500, 400), profile)
    assert any(isinstance(node, Select) for _, _, node, _, _ in walk(plan.node, plan.bits, plan.count))
    assert restored(plan, data) == data
    others = {"F32": 27.6, "F16": 14.5, "BF16": 10.8}[dtype]
    assert stored_size(plan, data) < (1 + 0.4 * others) / 8 * 200_000


def test_slow_changes_are_a_scan() -> None:
    numbers = np.cumsum(RNG(0).integers(0, 6, 60_000)).astype("<i4")
    node = planned(numbers.tobytes(), "I32", (60_000,)).node
    assert isinstance(node, Scan)
    assert node.kind == "add"


def test_single_words_that_recur_among_others_are_zstd() -> None:
    # Numbers with few digits, divided by their row's norm: equal ones of a row stay equal.
    numbers = np.random.default_rng(5).normal(0, 1, (300, 384)).astype(np.float16).astype(np.float64)
    data = (numbers / np.linalg.norm(numbers, axis=1, keepdims=True)).tobytes()
    plan = planned(data, "F64", (300, 384))
    assert "51: Lit zstd" in to_text(plan.node)
    size = stored_size(plan, data)
    assert size < 0.83 * len(data)
    assert plan.candidates[0].size == pytest.approx(size, rel=0.01)
    assert restored(plan, data) == data


def test_what_recurs_at_a_distance_is_zstd() -> None:
    words = RNG(0).integers(0, 2**32, 900, dtype=np.uint32)
    data = np.concatenate([words[RNG(i).integers(0, 700) :] for i in range(60)]).tobytes()
    assert "zstd" in to_text(planned(data, "F32").node)


@pytest.mark.parametrize("profile", list(Profile))
def test_a_fourier_basis_whose_words_come_again_in_reverse_order_is_zstd(profile: Profile) -> None:
    # As models of speech keep it: a windowed cosine and sine a row.
    angle = np.outer(np.arange(129), np.arange(256)) * (2 * np.pi / 256)
    window = np.hanning(257)[:-1]
    data = np.concatenate((np.cos(angle) * window, -np.sin(angle) * window)).astype("<f4").tobytes()
    plan = planned(data, "F32", (258, 1, 256), profile)
    assert "zstd" in to_text(plan.node)
    assert restored(plan, data) == data
    # Of blocks that are half as large, less comes again.
    assert stored_size(plan, data) < (0.5 if profile is Profile.FAST else 0.35) * len(data)


def test_bytes_of_records_are_taken_as_wider_words() -> None:
    records = RNG(0).integers(0, 256, (20_000, 5)).astype(np.uint8)
    records[:, 1] = RNG(1).integers(40, 44, 20_000)
    plan = planned(records.tobytes(), "U8", (200, 500))
    assert plan.bits == 40
    assert restored(plan, records.tobytes()) == records.tobytes()


def test_packed_weights_are_taken_as_bytes() -> None:
    nibbles = RNG(0).binomial(15, 0.5, (200, 3_200)).astype(np.uint8)
    data = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).tobytes()
    plan = planned(data, "I32", (200, 400))
    assert plan.bits == 8
    assert restored(plan, data) == data
    assert stored_size(plan, data) < 1.015 * 3.0 / 4 * len(data)


def test_fast_takes_codewords_of_fixed_length_in_one_pass() -> None:
    data = bf16(gaussian(200_000)).tobytes()
    plan = planned(data, "BF16", (500, 400), Profile.FAST)
    assert "8: Lit tunstall" in to_text(plan.node)
    assert restored(plan, data) == data
    assert stored_size(plan, data) < 0.69 * len(data)


@pytest.mark.parametrize("top", [0, 1, 2, 3])
def test_what_is_joined_in_one_pass_has_a_symbol_below_a_quiet_top(top: int) -> None:
    symbols = RNG(0).choice(256, 40, replace=False)[RNG(2).binomial(39, 0.5, 100_000)]
    words = (symbols << 8 - top | RNG(1).integers(0, 1 << 8 - top, 100_000)).astype("<u2")
    text = to_text(planned(words.tobytes(), "U16", (100_000,)).node)
    assert text.startswith(f"Merge({top}: Const 0, 8: Lit rans" if top else "Merge(8: Lit rans")
    assert text.endswith(f"{8 - top}: Lit raw)")


@pytest.mark.parametrize("rows", [192, 1_536, 5_003])
def test_records_longer_than_a_word_are_stored_by_column(rows: int) -> None:
    records = RNG(0).binomial(255, 0.5, (rows, 18, 20)).astype(np.uint8)
    records[:, :, 0] = RNG(1).integers(0, 256, (rows, 18))
    records[:, :, 1] = RNG(2).integers(40, 44, (rows, 18))
    data = records.tobytes()
    plan = planned(data, "U8", (rows, 360))
    by_column = r"Transpose\(20, Lit (huffman|rans)\(.*tables=[3-6]|tables=[3-6], segment=360, .*columns="
    assert re.search(by_column, to_text(plan.node))
    assert plan.block % 20 == 0 or plan.block >= len(data) or "columns=" in to_text(plan.node)
    assert restored(plan, data) == data
    entropy = 8 + 2 + 18 * 5.047
    assert stored_size(plan, data) < 1.015 * entropy / 160 * len(data) + 500


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("rows", [300, 4_001])
def test_columns_of_a_matrix_that_differ_in_scale(rows: int, profile: Profile) -> None:
    scales = 10.0 ** RNG(0).integers(-3, 2, 384)
    data = bf16((RNG(1).normal(size=(rows, 384)) * scales).astype("<f4").reshape(-1)).tobytes()
    plan = planned(data, "BF16", (rows, 384), profile)
    text = to_text(plan.node)
    assert "Transpose(384" in text or "columns=" in text
    assert restored(plan, data) == data
    assert stored_size(plan, data) < 0.73 * len(data)


def test_a_given_block_size_is_kept() -> None:
    scales = 10.0 ** RNG(0).integers(-3, 2, 384)
    data = bf16((RNG(1).normal(size=(600, 384)) * scales).astype("<f4").reshape(-1)).tobytes()
    assert synthesize(Memory(data), "BF16", (600, 384), Profile.BALANCED, 4096).block == 4096
    records = RNG(0).binomial(255, 0.5, (9_000, 20)).astype(np.uint8)
    records[:, :2] = RNG(1).integers(0, 4, (9_000, 2))
    assert synthesize(Memory(records.tobytes()), "U8", (), Profile.BALANCED, 4096).block == 4096


def test_classes_of_rows_in_dense() -> None:
    scales = np.repeat(10.0 ** RNG(0).integers(-3, 2, 300), 400)
    data = bf16((RNG(1).normal(size=120_000) * scales).astype("<f4")).tobytes()
    plan = planned(data, "BF16", (300, 400), Profile.DENSE)
    coded = [leaf.encoding for leaf in leaves(plan) if isinstance(leaf, Lit)]
    assert any(isinstance(encoding, Huffman | Rans) and encoding.tables > 1 for encoding in coded)
    assert restored(plan, data) == data


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("dtype", ["F32", "BF16", "U8", "F64", "F4", "I64"])
@pytest.mark.parametrize("count", [64, 5_000, 300_000])
def test_random_bytes_stay_as_they_are(dtype: str, count: int, profile: Profile) -> None:
    data = RNG(7).bytes(count)
    plan = planned(data, dtype, (), profile)
    assert plan.node == Lit(Raw())
    assert stored_size(plan, data) <= len(data) + 4


def late_words(count: int) -> bytes:
    """Words of which no sample of a long stream sees the odd ones out."""
    words = (RNG(0).integers(0, 16, count)).astype("<u2")
    words[16_385:16_390] = 0xFFFF
    words[-3:] = 0xABCD
    return words.tobytes()


@pytest.mark.parametrize("profile", list(Profile))
def test_what_no_sample_has_is_coded_all_the_same(profile: Profile) -> None:
    data = late_words(2_500_000)
    plan = planned(data, "U16", (2_500_000,), profile)
    assert restored(plan, data) == data
    assert stored_size(plan, data) < 0.27 * len(data)


def test_a_constant_that_fails_somewhere_becomes_sparse() -> None:
    words = np.zeros(3_000_000, "<u2")
    words[20_001] = 5
    plan = planned(words.tobytes(), "U16", (3_000_000,))
    assert restored(plan, words.tobytes()) == words.tobytes()
    assert stored_size(plan, words.tobytes()) < 2_000


DTYPES: dict[str, Callable[[], bytes]] = {
    "BOOL": lambda: RNG(0).integers(0, 2, 5_000).astype(np.uint8).tobytes(),
    "F4": lambda: RNG(0).integers(0, 100, 5_000).astype(np.uint8).tobytes(),
    "F6_E2M3": lambda: RNG(0).bytes(3_000),
    "F8_E4M3": lambda: RNG(0).binomial(255, 0.4, 5_000).astype(np.uint8).tobytes(),
    "F16": lambda: gaussian(5_000).astype("<f2").tobytes(),
    "F64": lambda: gaussian(5_000).astype("<f8").tobytes(),
    "C64": lambda: gaussian(5_000).tobytes(),
    "I32": lambda: RNG(0).integers(-9, 9, 5_000).astype("<i4").tobytes(),
    "U64": lambda: RNG(0).integers(0, 9, 5_000).astype("<u8").tobytes(),
    "F7_NEW": lambda: gaussian(777).tobytes() + b"abc",
}


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_comes_back(dtype: str, profile: Profile) -> None:
    data = DTYPES[dtype]()
    plan = planned(data, dtype, (), profile)
    assert plan.bits == {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "C64": 32, "F16": 16}.get(dtype, plan.bits)
    assert restored(plan, data) == data
    assert stored_size(plan, data) <= len(data) + 8


@pytest.mark.parametrize("words", [[0], [1], [1, 2], [1, 1], [5, 9, 5, 9], [0, 0, 7]])
@pytest.mark.parametrize("dtype", ["U8", "F16", "F32", "F64"])
def test_a_few_words(words: list[int], dtype: str) -> None:
    size = {"U8": 1, "F16": 2, "F32": 4, "F64": 8}[dtype]
    data = b"".join(word.to_bytes(size, "little") for word in words)
    assert restored(planned(data, dtype, (len(words),)), data) == data


def test_special_floats_are_only_bits() -> None:
    odd = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1, 0x007FFFFF, 0x7F800000, 0xFF800000], "<u4")
    data = np.concatenate((gaussian(3_000).view("<u4"), np.resize(odd, 500))).tobytes()
    assert restored(planned(data, "F32"), data) == data


def test_the_same_bytes_give_the_same_plan() -> None:
    data = gaussian(50_000).tobytes()
    assert planned(data, "F32", (50, 1000)) == planned(data, "F32", (50, 1000))


def test_candidates_are_told_and_the_plain_literal_is_among_them() -> None:
    plan = planned(bf16(gaussian(20_000)).tobytes(), "BF16", (20_000,))
    assert Candidate(Lit(Raw()), 40_006) in plan.candidates
    assert plan.candidates[0].text == to_text(plan.node)
    data = bf16(gaussian(20_000)).tobytes()
    assert plan.candidates[0].size == pytest.approx(stored_size(plan, data), rel=0.01)


def test_dense_is_no_larger_and_fast_no_smaller() -> None:
    data = bf16(gaussian(300_000)).tobytes()
    sizes = [stored_size(planned(data, "BF16", (300, 1000), profile), data) for profile in Profile]
    assert sizes == sorted(sizes, reverse=True)


def test_rows_of_a_part_of_a_stream_keep_their_places() -> None:
    # Classes count a leaf's own words: behind a part of a Concat, and past the gaps of a Scan's blocks.
    scales = np.repeat(np.where(np.arange(600) % 3, 1.0, 1e-4), 400)
    floats = (RNG(1).normal(size=240_000) * scales).astype("<f4")
    floats[:30_000] = 0.0
    data = floats.tobytes()
    plan = planned(data, "F32", (600, 400), Profile.DENSE)
    assert "tables=" in to_text(plan.node)
    assert restored(plan, data) == data
    steps = np.cumsum(RNG(2).binomial(200, np.repeat(np.where(np.arange(600) % 2, 0.1, 0.6), 400))).astype(
        "<i4"
    )
    plan = planned(steps.tobytes(), "I32", (600, 400), Profile.DENSE)
    assert "Scan" in to_text(plan.node)
    assert "tables=" in to_text(plan.node)
    assert restored(plan, steps.tobytes()) == steps.tobytes()


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        synthesize(Memory(b""), "F32", (0,), Profile.BALANCED)


def sines(rows: int, columns: int) -> bytes:
    """A table of positions as transformers have it."""
    waves = np.arange(rows)[:, None] * 10_000.0 ** (-np.arange(columns // 2) / (columns / 2 - 1))
    return np.concatenate((np.sin(waves), np.cos(waves)), axis=1).astype("<f2").tobytes()


def test_what_recurs_in_bytes_is_stored_by_byte_and_no_larger_in_dense() -> None:
    data = sines(800, 256)
    sizes = {}
    for profile in Profile:
        plan = planned(data, "F16", (800, 256), profile)
        assert restored(plan, data) == data
        sizes[profile] = stored_size(plan, data)
    assert sizes[Profile.DENSE] <= sizes[Profile.BALANCED] <= sizes[Profile.FAST]
    assert sizes[Profile.BALANCED] < 0.48 * len(data)


def test_several_tables_are_of_the_coder_that_takes_fewer_bytes_with_them() -> None:
    # With one table that is rANS here, but a frequency takes more than a code length.
    scales = np.repeat(np.geomspace(1, 100, 6), 32)[RNG(6).permutation(192), None]
    words = np.clip(RNG(5).normal(128, scales, (192, 360)).round(), 0, 255).astype(np.uint8)
    data = words.tobytes()
    dense, balanced = (
        planned(data, "U8", (192, 360), profile) for profile in (Profile.DENSE, Profile.BALANCED)
    )
    assert "Lit huffman(max=11, streams=5, tables=6" in to_text(dense.node)
    assert stored_size(dense, data) <= stored_size(balanced, data)
