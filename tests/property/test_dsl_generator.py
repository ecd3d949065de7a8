"""The generator of random programs makes everything the format has, so that tests on it mean something."""

import random
from collections import Counter

from brevisfs.dsl import Huffman, Lit, Map, Rans, Scan, walk
from tests.programs import random_case, random_program, random_type


def test_programs_hold_every_part_of_the_language_and_every_width() -> None:
    rng = random.Random(1)
    seen: Counter[str] = Counter()
    for _ in range(6000):
        bits, count, _ = random_type(rng)
        for _, depth, node, width, _ in walk(random_program(rng, bits, count), bits, count):
            seen[type(node).__name__] += 1
            seen[f"width {width}"] += 1
            seen[f"depth {depth}"] += 1
            match node:
                case Lit(encoding):
                    seen[f"{type(encoding).__name__} of {width}"] += 1
                    if isinstance(encoding, Huffman | Rans):
                        seen[f"{type(encoding).__name__}, tables {encoding.tables > 1}"] += 1
                case Map(function, _):
                    seen[type(function).__name__] += 1
                case Scan(kind, _):
                    seen[kind] += 1
    expected = {"Lit", "Const", "Concat", "Repeat", "Map", "Scan", "Merge", "xor", "add"}
    expected |= {"Xor", "Add", "ZigZag", "Gray", "BitReverse", "RotR"}
    expected |= {f"width {width}" for width in range(1, 65)} | {f"depth {depth}" for depth in range(5)}
    expected |= {f"{name} of {width}" for name in ("Raw", "Pack", "Zstd", "Sparse") for width in range(1, 65)}
    expected |= {f"{name} of {width}" for name in ("Huffman", "Rans") for width in range(1, 17)}
    expected |= {f"{name}, tables {many}" for name in ("Huffman", "Rans") for many in (True, False)}
    assert expected - set(seen) == set()


def test_cases_repeat_and_have_several_blocks() -> None:
    cases = [random_case(random.Random(seed)) for seed in range(100)]
    assert cases[:20] == [random_case(random.Random(seed)) for seed in range(20)]
    assert all(case.bits * case.count % 8 == 0 for case in cases)
    assert sum(len(case.payloads) > 1 for case in cases) > 30
    assert sum(case.count % case.block != 0 for case in cases) > 30
