"""What is priced is what the native encoder makes of it."""

import heapq

import numpy as np
import pytest

from brevisfs import _native
from brevisfs._native import _plan
from brevisfs._native._plan import Way
from brevisfs.dsl import Huffman, Lit, Node, Rans, Sparse, Tunstall, to_wire
from brevisfs.synth import _literal
from brevisfs.synth._literal import Choice, Extent, better
from brevisfs.synth._profile import SETTINGS, Profile
from brevisfs.synth._sample import to_flat


def histograms() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    skewed = (1e6 * 0.7 ** np.arange(64)).astype(np.int64)
    return [
        np.array([3, 0, 0, 9]),
        rng.integers(0, 50, 256),
        skewed,
        np.bincount(rng.geometric(0.2, 5000) % 256, minlength=256),
        np.where(rng.random(1024) < 0.05, 7, 0),
    ]


def test_of_choices_as_good_as_each_other_the_first_is_taken() -> None:
    first, second = Choice(Lit(Sparse(0)), 10.0, 2.0), Choice(Lit(Sparse(1)), 12.0)
    assert better(first, second) is first
    assert better(second, first) is second


def test_huffman_bits_are_those_of_the_best_code() -> None:
    for hist in histograms():
        assert _plan.huffman_bits(hist, 15) >= _plan.entropy_bits(hist)
        assert _plan.huffman_bits(hist, 15) == pytest.approx(_best_code_bits(hist), rel=1e-3)


def _best_code_bits(hist: np.ndarray) -> int:
    """What a code of unlimited length takes: the sum of all inner nodes of Huffman's tree."""
    nodes = hist[hist > 0].tolist()
    heapq.heapify(nodes)
    total = 0
    while len(nodes) > 1:
        both = heapq.heappop(nodes) + heapq.heappop(nodes)
        total += both
        heapq.heappush(nodes, both)
    return total


def test_more_symbols_than_codes_cannot_be_coded() -> None:
    assert _plan.huffman_bits(np.ones(32, np.int64), 4) == float("inf")
    assert _plan.rans_bits(np.ones(512, np.int64), 8) == float("inf")


def test_table_sizes_are_those_of_the_native_tables() -> None:
    for hist in histograms():
        counts = hist.astype(np.uint64)[None]
        assert _plan.huffman_table_bytes(hist) == len(_native.huffman_tables(counts, 14))
        assert _plan.rans_table_bytes(hist, 14) == pytest.approx(len(_native.rans_tables(counts, 14)), abs=3)


def test_entropy_is_below_what_codes_reach() -> None:
    for hist in histograms():
        floor = _plan.entropy_bits(hist)
        assert floor <= _plan.rans_bits(hist, 14) + 1e-6
        assert floor <= _plan.huffman_bits(hist, 14) + 1e-6


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("share", [0.0005, 0.02, 0.3])
@pytest.mark.parametrize("kind", ["sparse", "huffman", "rans", "tunstall"])
def test_a_choice_is_priced_within_a_percent(bits: int, share: float, kind: str) -> None:
    rng = np.random.default_rng(1)
    words = np.where(rng.random(1 << 16) < share, rng.integers(0, 1 << bits, 1 << 16), 1).astype(np.uint8)
    hist = np.bincount(words, minlength=1 << bits)
    extent, settings = Extent(len(words), 1 << 14), SETTINGS[Profile.BALANCED]
    choice = _literal.coded(Way[kind.upper()], hist, bits, extent, settings)
    # What the last words leave of a rANS lane's state is not known beforehand: a byte or so.
    slack = 24 + (64 * extent.blocks if kind == "rans" else 0)
    assert choice.size == pytest.approx(_stored(choice.node, words, hist, bits, extent), rel=0.01, abs=slack)


def _stored(node: Node, words: np.ndarray, hist: np.ndarray, bits: int, extent: Extent) -> int:
    counts = hist.astype(np.uint64)[None]
    match node:
        case Lit(Huffman(max_length=length)):
            shared = _native.join_shared([_native.huffman_tables(counts, length)])
        case Lit(Rans(prob_bits=prob_bits) | Tunstall(prob_bits=prob_bits)):
            shared = _native.join_shared([_native.rans_tables(counts, prob_bits)])
        case Lit(Sparse()):
            shared = b""
        case _:
            raise AssertionError(node)
    wire = to_wire(node)
    program = _native.Program(wire, shared, bits, extent.count, extent.block)
    total = len(wire) + len(shared)
    for index in range(extent.blocks):
        flat = to_flat(words[index * extent.block : (index + 1) * extent.block], bits)
        total += program.encode_block(index, flat, bytearray(program.encode_bound()))
    return total


def test_least_is_below_every_completion() -> None:
    for profile in Profile:
        settings = SETTINGS[profile]
        for hist in histograms():
            bits = (len(hist) - 1).bit_length()
            extent = Extent(int(hist.sum()), 1 << 16)
            ways = [Way.SPARSE, Way.HUFFMAN, Way.RANS, *([Way.TUNSTALL] if bits <= 8 else [])]
            coded = [_literal.coded(way, hist, bits, extent, settings) for way in ways]
            least = _plan.floor(hist, bits, extent.count, extent.block, _literal.tolls(settings))
            assert all(least <= choice.rank + 1e-6 for choice in coded)
