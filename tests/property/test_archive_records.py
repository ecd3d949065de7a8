"""What native code takes for a section's prologue and block entries is what docs/format.md says, and no more.

The reference here reads both byte by byte, with Python's numbers, which do not wrap.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brevisfs._native import Index, ProgramRefused, checksum
from brevisfs.archive import _layout

MAX_PROGRAM, MAX_SHARED = 1 << 16, 1 << 26


@dataclass(frozen=True)
class Entry:
    """What the index says of a section."""

    kind: int
    ref: int
    dtype: int
    bits: int
    count: int
    block: int
    target: int
    prologue: int = 0
    record: int = 48


def index_of(entries: list[Entry], ends: list[int], begin: int) -> Index:
    table = np.zeros(len(entries), _layout._SECTION)
    first_block = 0
    for row, entry in zip(table, entries, strict=True):
        row["kind"], row["ref"], row["code"], row["bits"] = entry.kind, entry.ref, entry.dtype, entry.bits
        row["count"], row["block"], row["target"] = entry.count, entry.block, entry.target
        row["prologue"], row["record"], row["first_block"] = entry.prologue, entry.record, first_block
        first_block += -(-entry.count // entry.block)
    blocks = np.array([(end, 0) for end in ends], np.uint64).reshape(-1, 2)
    return Index(table, blocks, begin, 1)


def varint(value: int, padding: int = 0) -> bytes:
    """A number, in a longer form than needed if there is padding."""
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    groups += [0] * padding
    return bytes(group | 128 for group in groups[:-1]) + bytes(groups[-1:])


class Cut(Exception):
    """The data ends, or a number is not in its shortest form."""


def take_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = 0
    for length in range(10):
        if at + length >= len(data):
            raise Cut
        byte = data[at + length]
        value |= (byte & 127) << 7 * length
        if byte < 128:
            if value >= 1 << 64 or (byte == 0 and length):
                raise Cut
            return value, at + length + 1
    raise Cut


def parts_of(entry: Entry, data: bytes) -> tuple[bytes, bytes] | None:
    """Program and shared parts as docs/format.md describes a prologue, None if it breaks a rule."""
    if len(data) < 5:
        return None
    at, numbers = 5, []
    try:
        for _ in range(5 if entry.ref else 4):
            number, at = take_varint(data, at)
            numbers.append(number)
    except Cut:
        return None
    check, body = data[at : at + 8], data[at + 8 :]
    program, shared = numbers[2:4]
    good = (
        check == checksum(data[:at] + body).to_bytes(8, "little")
        and data[:2] == b"BS"
        and data[2] == entry.kind + 16 * entry.ref
        and data[3:5] == bytes([entry.dtype, entry.bits])
        and numbers[:2] == [entry.count, entry.block // 64]
        and program <= MAX_PROGRAM
        and shared <= MAX_SHARED
        and program + shared == len(body)
        and numbers[4:] == [entry.target] * bool(entry.ref)
    )
    return (body[:program], body[program:]) if good else None


def native_parts(entry: Entry, data: bytes) -> tuple[bytes, bytes] | None:
    sized = replace(entry, prologue=len(data))
    try:
        return index_of([sized], [], 0).prologue(0, np.frombuffer(data, np.uint8))
    except ProgramRefused:
        return None


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    ref = draw(st.integers(0, 2))
    return Entry(
        kind=draw(st.integers(0, 3)),
        ref=ref,
        dtype=draw(st.integers(0, 255)),
        bits=draw(st.integers(1, 64)),
        count=draw(st.one_of(st.integers(1, 300), st.integers(1, 2**61))),
        block=64 * draw(st.one_of(st.integers(1, 3), st.integers(1, 2**14))),
        target=draw(st.one_of(st.integers(0, 2), st.integers(0, 2**32 - 1))) if ref else 0,
    )


def prologue(entry: Entry, wire: bytes, shared: bytes, paddings: tuple[int, ...] = (0,) * 5) -> bytes:
    numbers = (entry.count, entry.block // 64, len(wire), len(shared), entry.target)[: 5 if entry.ref else 4]
    head = b"BS" + bytes([entry.kind | entry.ref << 4, entry.dtype, entry.bits])
    head += b"".join(map(varint, numbers, paddings))
    return sealed(head, wire + shared)


def sealed(head: bytes, body: bytes) -> bytes:
    return head + checksum(head + body).to_bytes(8, "little") + body


def head_length(data: bytes | bytearray, numbers: int) -> int:
    at = 5
    for _ in range(numbers):
        at = take_varint(data, at)[1]
    return at


@given(entries(), st.binary(max_size=40), st.binary(max_size=40))
def test_sound_prologues_are_taken(entry: Entry, wire: bytes, shared: bytes) -> None:
    data = prologue(entry, wire, shared)
    assert parts_of(entry, data) == native_parts(entry, data) == (wire, shared)


@given(entries(), st.binary(max_size=40), st.binary(max_size=40), st.randoms(use_true_random=False))
def test_changed_prologues(entry: Entry, wire: bytes, shared: bytes, rng: random.Random) -> None:
    """Any change: of the bytes, or of the head with a checksum that is right all the same."""
    data = bytearray(prologue(entry, wire, shared))
    length = head_length(data, 5 if entry.ref else 4)
    place = rng.randrange(length if rng.random() < 0.7 else len(data))
    match rng.randrange(4):
        case 0:
            data[place] ^= 1 << rng.randrange(8)
        case 1:
            data[place] = rng.choice((0, 1, 127, 128, 255))
        case 2:
            data[place:place] = rng.randbytes(rng.randint(1, 9))
        case _:
            del data[place : place + rng.randint(1, 9)]
    changed = bytes(data)
    if rng.random() < 0.7:
        cut = length + len(changed) - len(prologue(entry, wire, shared)) if rng.random() < 0.5 else length
        changed = sealed(changed[: max(0, cut)], changed[max(0, cut) + 8 :])
    assert parts_of(entry, changed) == native_parts(entry, changed)


@given(entries(), st.tuples(*[st.integers(0, 9)] * 5))
def test_numbers_have_one_form(entry: Entry, paddings: tuple[int, ...]) -> None:
    data = prologue(entry, b"program", b"", paddings)
    found = native_parts(entry, data)
    assert found == parts_of(entry, data)
    padded = any(paddings[: 5 if entry.ref else 4])
    assert (found is None) == padded


LENGTHS = st.one_of(
    st.integers(0, 100),
    st.sampled_from([2**16, 2**26, 2**26 + 1, 2**32, 2**63, 2**64 - 8]),
    st.integers(2**64 - 100, 2**64 - 1),
)


@given(entries(), LENGTHS, LENGTHS, st.integers(0, 100))
def test_lengths_that_wrap(entry: Entry, one: int, other: int, size: int) -> None:
    """Lengths of program and shared parts whose sum modulo 2^64 could be what there is."""
    for program, shared in ((one, other), (one, (size - one) % 2**64)):
        numbers = (entry.count, entry.block // 64, program, shared, entry.target)[: 5 if entry.ref else 4]
        head = b"BS" + bytes([entry.kind | entry.ref << 4, entry.dtype, entry.bits])
        data = sealed(head + b"".join(map(varint, numbers)), bytes(size))
        assert parts_of(entry, data) == native_parts(entry, data)


@pytest.mark.parametrize("program", [0, 1, MAX_PROGRAM, MAX_PROGRAM + 1])
@pytest.mark.parametrize("shared", [0, 1, MAX_SHARED, MAX_SHARED + 1])
def test_the_longest_parts(program: int, shared: int) -> None:
    entry = Entry(kind=2, ref=0, dtype=0, bits=8, count=64, block=64, target=0)
    data = prologue(entry, bytes(program), bytes(shared))
    found = native_parts(entry, data)
    assert found == parts_of(entry, data)
    assert (found is not None) == (program <= MAX_PROGRAM and shared <= MAX_SHARED)


@pytest.mark.parametrize("length", range(14))
def test_prologues_of_a_few_bytes(length: int) -> None:
    entry = Entry(kind=2, ref=0, dtype=0, bits=8, count=64, block=64, target=0)
    assert native_parts(entry, prologue(entry, b"", b"")[:length]) is None


def blocks_good(entry: Entry, ends: list[int], stop: int) -> bool:
    """Whether payloads with these ends fill the record as docs/format.md has it."""
    at = entry.record + entry.prologue
    most = 16 * (entry.block * entry.bits // 8) + 65536
    for end in ends:
        if not 0 <= end - at - 4 <= most:
            return False
        at = end
    return at == stop


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Entry, list[int], int]:
    """A section, the ends of its payloads, and where its record ends: sound, or about that."""
    bits, block = draw(st.integers(1, 64)), 64 * draw(st.integers(1, 3))
    blocks = draw(st.integers(1, 6))
    entry = Entry(
        kind=2, ref=0, dtype=0, bits=bits, count=draw(st.integers(block * (blocks - 1) + 1, block * blocks)),
        block=block, target=0, prologue=draw(st.integers(18, 300)), record=draw(st.integers(48, 2**40)),
    )  # fmt: skip
    most = 16 * (block * bits // 8) + 65536
    at = entry.record + entry.prologue
    ends = []
    for _ in range(blocks):
        at += 4 + draw(st.sampled_from([0, 1, 77, most - 1, most]))
        ends.append(at)
    return entry, ends, at


OFF = st.one_of(st.sampled_from([1, -1, 4, -4, 5, 2**32, 2**63, 2**64 - 1, 65536, -65536]), st.integers())


@given(layouts(), st.booleans(), st.integers(0, 5), OFF)
def test_block_entries(layout: tuple[Entry, list[int], int], alone: bool, place: int, off: int) -> None:
    """Sound ones, with the index after them or another record; and each with one end, or that, elsewhere."""
    entry, ends, stop = layout
    index = section_index(entry, ends, stop, alone)
    assert index.blocks_good(0)
    assert blocks_good(entry, ends, stop)
    changed = [*ends, stop]
    place = min(place, len(ends))
    changed[place] = (changed[place] + off) % 2**64
    index = section_index(entry, changed[:-1], changed[-1], alone)
    assert index.blocks_good(0) == blocks_good(entry, changed[:-1], changed[-1])


def section_index(entry: Entry, ends: list[int], stop: int, alone: bool) -> Index:
    """An index with the section, and one after it unless it is alone."""
    if alone:
        return index_of([entry], ends, stop)
    after = replace(entry, record=stop, count=1)
    return index_of([entry, after], [*ends, 0], 0)
