"""Damaged programs, shared parts and payloads: an error or bytes, never a crash or a write out of bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from brevisfs import _native as native
from brevisfs.dsl import ProgramError, from_wire, parse_text, to_wire
from brevisfs.dsl.reference import Malformed, decode_block, flatten
from tests.programs import Case, case_of, random_case
from tests.property.test_native_executor import block_bytes, program, spans


def damage(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    how = rng.randrange(4)
    if how == 0 and out:
        for _ in range(rng.randint(1, 3)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del out[rng.randint(0, len(out)) :]
    elif how == 2:
        at = rng.randint(0, len(out))
        out[at:at] = rng.randbytes(rng.randint(1, 9))
    elif out:
        at = rng.randrange(len(out))
        del out[at : at + rng.randint(1, 4)]
    return bytes(out)


def try_decode(case: Case, prog: native.Program, payload: bytes, index: int) -> None:
    lo = index * block_bytes(case)
    hi = min(len(case.flat), lo + block_bytes(case))
    out = np.full(hi - lo + 64, 0xA5, np.uint8)
    try:
        prog.decode(payload, index, spans([payload]), None, out, lo, hi)
    except native.BlockDamaged as error:
        assert error.block == index
    assert (out[hi - lo :] == 0xA5).all(), "wrote past the range"


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_damaged_payloads(first: int) -> None:
    for seed in range(first, first + 250):
        rng = random.Random(seed)
        case = random_case(rng)
        prog = program(case)
        for _ in range(8):
            index = rng.randrange(len(case.payloads))
            try_decode(case, prog, damage(rng, case.payloads[index]), index)


def native_bytes(case: Case, prog: native.Program, payload: bytes, index: int) -> bytes | None:
    """What a block decodes to, None if it is refused."""
    lo = index * block_bytes(case)
    out = bytearray(min(len(case.flat), lo + block_bytes(case)) - lo)
    try:
        prog.decode(payload, index, spans([payload]), None, out, lo, lo + len(out))
    except native.BlockDamaged:
        return None
    return bytes(out)


def reference_bytes(case: Case, payload: bytes, index: int) -> bytes | None:
    form = (case.node, case.bits, case.count, case.block)
    try:
        return flatten(decode_block(*form, index, case.shared, payload), case.bits)
    except Malformed:
        return None


@pytest.mark.parametrize("first", [0, 30])
def test_native_and_python_take_the_same_payloads(first: int) -> None:
    taken = []
    for seed in range(first, first + 30):
        rng = random.Random(seed)
        case = random_case(rng)
        prog = program(case)
        for _ in range(4):
            index = rng.randrange(len(case.payloads))
            payload = damage(rng, case.payloads[index])
            found = native_bytes(case, prog, payload, index)
            assert found == reference_bytes(case, payload, index), f"seed {seed}: {payload.hex()}"
            taken.append(found is not None)
    assert any(taken)
    assert not all(taken)


@pytest.mark.parametrize(
    ("text", "bits", "start"),
    [
        ("Scan(xor, Lit raw)", 7, b"\x80"),
        ("Lit sparse(base=0)", 8, b"\x03\x01\x40\x07"),
        ("Lit sparse(base=0)", 8, b"\x01\x41"),
        ("Lit huffman(max=4, streams=2, tables=3, segment=16)", 4, b"\x3f\xff"),
        ("Lit huffman(max=4, streams=2, tables=2, segment=16, rows=3, columns=2)", 4, b"\x3f\xff"),
    ],
    ids=["anchor", "position", "count", "class", "row class"],
)
def test_what_is_no_word_position_or_class_is_damage(text: str, bits: int, start: bytes) -> None:
    case = case_of(random.Random(0), parse_text(text), bits, 64, 64)
    payload = start + case.payloads[0][len(start) :]
    assert native_bytes(case, program(case), case.payloads[0], 0) == case.flat
    assert reference_bytes(case, payload, 0) is None
    assert native_bytes(case, program(case), payload, 0) is None


HUFFMAN, RANS = "Lit huffman(max=2, streams=1)", "Lit rans(lanes=1, prob=8)"
PAIRED = "Lit huffman(max=1, streams=1, tables=3, segment=16, rows=1, columns=3)"


@pytest.mark.parametrize(
    ("text", "bits", "shared", "is_valid"),
    [
        (HUFFMAN, 2, "03 210200", True),
        (HUFFMAN, 2, "03 210300", False),  # a code above the limit
        (HUFFMAN, 2, "03 211200", False),  # codes that do not fill the space, or more
        (HUFFMAN, 2, "03 220200", False),
        (HUFFMAN, 2, "02 2002", False),
        (HUFFMAN, 2, "03 111100", False),
        (HUFFMAN, 2, "01 30", False),
        (HUFFMAN, 2, "03 210201", False),  # a run past the last symbol
        (HUFFMAN, 2, "03 210208", False),  # a run's length not in its shortest form
        (HUFFMAN, 2, "04 21020000", False),  # more than the tables
        (HUFFMAN, 1, "01 11", True),
        (HUFFMAN, 1, "02 1110", False),
        (HUFFMAN, 2, "03 210200 00", False),
        ("Lit huffman(max=2, streams=1, tables=3, segment=16)", 1, "03 111111", True),
        (PAIRED, 1, "08 00000000 00 111111", True),
        (PAIRED, 1, "08 000000ff 00 111111", False),  # a class of columns that is not there
        (PAIRED, 1, "08 00000000 ff 111111", False),  # a pair's table that is not there
        (PAIRED, 1, "03 000000", False),
        ("Lit huffman(max=1, streams=1)", 2, "02 0102", True),
        ("Lit huffman(max=1, streams=1)", 2, "02 0112", False),  # a last nibble that is not 0
        (RANS, 1, "04 8001 8001", True),
        (RANS, 1, "03 8001 7f", False),
        (RANS, 1, "04 8002 0001", False),
        (RANS, 1, "05 8002 0000 00", False),
        (RANS, 1, "05 8001 8001 00", False),
    ],
)
def test_shared_parts_that_are_tables_and_nothing_else(
    text: str, bits: int, shared: str, is_valid: bool
) -> None:
    form = (to_wire(parse_text(text)), bytes.fromhex(shared), bits, 8, 64)
    if is_valid:
        native.Program(*form)
        return
    with pytest.raises(native.ProgramRefused):
        native.Program(*form)


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("words", [96, 104])
def test_a_zstd_frame_of_fewer_or_more_words_is_damage(bits: int, words: int) -> None:
    case = case_of(random.Random(0), parse_text("Lit zstd"), bits, 100, 128)
    payload = case_of(random.Random(0), parse_text("Lit zstd"), bits, words, 128).payloads[0]
    assert reference_bytes(case, payload, 0) is None
    assert native_bytes(case, program(case), payload, 0) is None


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_damaged_programs_and_shared_parts(first: int) -> None:
    for seed in range(first, first + 250):
        rng = random.Random(seed)
        case = random_case(rng)
        for _ in range(8):
            wire, shared = case.wire, case.shared
            if rng.random() < 0.6:
                wire = damage(rng, wire)
            else:
                shared = damage(rng, shared)
            try:
                prog = native.Program(wire, shared, case.bits, case.count, case.block)
            except (native.ProgramRefused, native.BlockDamaged):
                continue
            index = rng.randrange(len(case.payloads))
            try_decode(case, prog, case.payloads[index], index)


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_native_and_python_refuse_the_same_programs(first: int) -> None:
    refused = 0
    for seed in range(first, first + 250):
        rng = random.Random(seed)
        case = random_case(rng)
        for _ in range(8):
            wire = damage(rng, case.wire)
            try:
                from_wire(wire, case.bits, case.count)
                python_takes = True
            except ProgramError:
                python_takes = False
                refused += 1
            try:
                native.Analysis(wire, case.bits, case.count, case.block)
                native_takes = True
            except native.ProgramRefused:
                native_takes = False
            assert native_takes == python_takes, f"seed {seed}: {wire.hex()} as {case.bits}[{case.count}]"
    assert refused > 100


def test_a_checksum_that_differs_is_damage() -> None:
    case = random_case(random.Random(1))
    prog = program(case)
    out = bytearray(len(case.flat))
    checks = np.zeros(len(case.payloads), np.uint64)
    with pytest.raises(native.BlockDamaged, match="checksum"):
        prog.decode(b"".join(case.payloads), 0, spans(case.payloads), checks, out, 0, len(case.flat))


def test_payloads_outside_the_buffer_are_refused() -> None:
    case = random_case(random.Random(2))
    prog = program(case)
    out = bytearray(len(case.flat))
    where = spans(case.payloads)
    where[-1, 0] = 2**63
    with pytest.raises(native.NativeError):
        prog.decode(b"".join(case.payloads), 0, where, None, out, 0, len(case.flat))


def test_a_range_the_blocks_do_not_cover_is_refused() -> None:
    case = random_case(random.Random(2))
    prog = program(case)
    out = bytearray(len(case.flat) + 100)
    for lo, hi in ((0, 0), (0, len(case.flat) + 1), (5, 4)):
        with pytest.raises((native.NativeError, ValueError)):
            prog.decode(b"".join(case.payloads), 0, spans(case.payloads), None, out, lo, hi)
