"""Every byte of a payload and of the shared parts belongs to one node."""

from __future__ import annotations

import random

import pytest

from brevisfs._native import Analysis
from brevisfs.dsl import Lit, Raw, Scan, payload_bytes, shared_bytes, walk
from brevisfs.dsl.reference import flatten
from tests.programs import random_case


@pytest.mark.parametrize("seed", range(60))
def test_the_items_of_random_programs_add_up(seed: int) -> None:
    case = random_case(random.Random(seed))
    nodes = {index: (node, bits) for index, _, node, bits, _ in walk(case.node, case.bits, case.count)}
    analysis = Analysis(case.wire, case.bits, case.count, case.block)
    for block, payload in enumerate(case.payloads):
        flat = flatten(case.words[block * case.block : (block + 1) * case.block], case.bits)
        lengths = {index: len(analysis.words(block, flat, index)) for index in nodes}
        found = payload_bytes(case.node, case.bits, case.count, lengths.__getitem__, payload)
        assert sum(found.values()) == len(payload)
        for index, spent in found.items():
            node, bits = nodes[index]
            assert isinstance(node, Lit | Scan)
            if node == Lit(Raw()) and bits % 8 == 0:
                assert spent == lengths[index] * bits // 8
    assert sum(shared_bytes(case.node, case.bits, case.count, case.shared).values()) == len(case.shared)
