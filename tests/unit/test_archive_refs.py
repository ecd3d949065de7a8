"""Sections that refer to others: read like any, lost with what they refer to, bound by the rules."""

import random
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from brevisfs.archive import (
    BlockDamaged,
    DamagedArchive,
    Kind,
    Reader,
    Ref,
    UnsupportedArchive,
    Writer,
    verify,
)
from tests.archives import Part, assemble, encoded, opened, original, read, referring
from tests.unit.test_archive_damage import assert_rest_reads, checked, flipped, opening, sealed

BLOCK = 64


def nearly(flat: bytes, rng: random.Random) -> bytes:
    out = bytearray(flat)
    for _ in range(10):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def sample(bits: int, ref: Ref) -> list[Part]:
    """A section, one like it, and one equal to it, with others before, between and after."""
    rng = random.Random(bits)
    flat = rng.randbytes(BLOCK * bits // 8 * 5 + bits)
    parts = [encoded("Lit raw", 8, rng.randbytes(100), 64, Kind.HEADER)]
    parts.append(encoded("Lit raw", bits, flat, BLOCK))
    parts.append(encoded("Lit raw", 8, rng.randbytes(50), 64))
    parts.append(referring("Lit zstd", nearly(flat, rng), ref, 1, parts))
    parts.append(referring("Const 0", flat, ref, 1, parts))
    return [*parts, encoded("Lit raw", 8, rng.randbytes(77), 64, Kind.BYTES)]


@pytest.mark.parametrize(
    ("bits", "ref"),
    [*((bits, Ref.XOR) for bits in (1, 5, 8, 16, 24, 64)), *((bits, Ref.ADD) for bits in (8, 16, 32, 64))],
)
def test_any_range_reads(bits: int, ref: Ref) -> None:
    parts = sample(bits, ref)
    whole, rng = original(parts), random.Random(1)
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        assert [section.ref for section in reader.sections] == [Ref.NONE] * 3 + [ref] * 2 + [Ref.NONE]
        assert read(reader, 0, len(whole)) == whole
        for _ in range(200):
            begin, end = sorted(rng.choices(range(len(whole) + 1), k=2))
            assert read(reader, begin, end) == whole[begin:end]
        assert verify(fd, threads=2).ok


def test_equal_sections_take_hardly_a_byte() -> None:
    flat = random.Random(0).randbytes(100_000)
    parts = [encoded("Lit raw", 8, flat, 1 << 14)]
    alone = len(assemble(parts))
    assert len(assemble([*parts, referring("Const 0", flat, Ref.XOR, 0, parts)])) < alone + 300


def test_a_damaged_block_is_lost_wherever_it_is_referred_to() -> None:
    parts = sample(16, Ref.XOR)
    data, whole = assemble(parts), original(parts)
    with opened(data) as fd:
        sections = list(Reader(fd).sections)
    payload = sections[1].record + sections[1].prologue + 2 * (4 + 128) + 4
    bad = flipped(data, payload)
    lost = [(sections[i].offset + 256, sections[i].offset + 384) for i in (1, 3, 4)]
    assert [(fault.begin, fault.end) for fault in checked(bad).faults] == lost
    assert_rest_reads(bad, whole, lost)
    with opened(bad) as fd, pytest.raises(BlockDamaged, match="block 2: section 1, to which it refers: "):
        read(Reader(fd), *lost[2])


def test_a_lost_program_is_lost_wherever_it_is_referred_to() -> None:
    parts = sample(16, Ref.ADD)
    data = assemble(parts)
    with opened(data) as fd:
        sections = list(Reader(fd).sections)
    report = checked(flipped(data, sections[1].record + sections[1].prologue - 1))
    assert [fault.section for fault in report.faults] == [1, 3, 4]
    assert all(
        (fault.begin, fault.end) == (sections[i].offset, sections[i].end)
        for fault, i in zip(report.faults, (1, 3, 4), strict=True)
    )


def test_a_program_of_a_later_version_is_that_wherever_it_is_referred_to() -> None:
    parts = sample(16, Ref.XOR)
    parts[1] = replace(parts[1], wire=b"\xc8\0")
    with opened(assemble(parts)) as fd:
        reader = Reader(fd)
        with pytest.raises(UnsupportedArchive) as caught:
            read(reader, reader.sections[4].offset, reader.sections[4].end)
        assert caught.value.section == 4


def test_damage_of_a_referring_block_is_its_own() -> None:
    parts = sample(16, Ref.XOR)
    data, whole = assemble(parts), original(parts)
    with opened(data) as fd:
        section = Reader(fd).sections[3]
    bad = flipped(data, section.record + section.prologue + 4 + 10)
    assert_rest_reads(bad, whole, [(section.offset, section.offset + 128)])


@pytest.mark.parametrize("at", [2, 9])
def test_a_record_that_refers_elsewhere_than_the_index_says(at: int) -> None:
    parts = sample(16, Ref.XOR)
    data = assemble(parts)
    with opened(data) as fd:
        section = Reader(fd).sections[3]
    assert [fault.section for fault in checked(flipped(data, section.record + at, 1)).faults] == [3]


RULES: dict[str, tuple[int, Ref, int, str]] = {
    "later": (3, Ref.XOR, 4, "not before it"),
    "far beyond": (3, Ref.XOR, 2**32 - 1, "not before it"),
    "one that refers": (4, Ref.XOR, 3, "itself refers"),
    "other words": (4, Ref.XOR, 0, "another type"),
    "nothing": (4, Ref.NONE, 1, "not known"),
    "added words of 24 bits": (4, Ref.ADD, 1, "not of 8, 16, 32 or 64 bits"),
}


@pytest.mark.parametrize("what", RULES)
def test_a_reference_that_breaks_a_rule_is_refused(what: str) -> None:
    row, ref, target, why = RULES[what]

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        table["form"][row], table["target"][row] = table["form"][row] & 15 | ref << 4, target

    error = opening(sealed(assemble(sample(24, Ref.XOR)), edit))
    assert type(error) is DamagedArchive
    assert why in str(error)


@pytest.mark.parametrize(
    ("bits", "count", "block", "ref", "target"),
    [(12, 96, 64, Ref.XOR, 1), (12, 96, 64, Ref.ADD, 0), (8, 96, 64, Ref.XOR, 0), (12, 96, 128, Ref.XOR, 0)],
)
def test_the_writer_refuses_a_reference_that_breaks_a_rule(
    bits: int, count: int, block: int, ref: Ref, target: int
) -> None:
    writer = Writer(BytesIO().write, 1000)
    writer.begin_section(Kind.TENSOR, None, 0, 12, 96, 64, b"w", b"")
    writer.add_block(b"", 0)
    writer.add_block(b"", 0)
    with pytest.raises(ValueError, match="fit"):
        writer.begin_section(Kind.TENSOR, None, 144, bits, count, block, b"w", b"", ref, target)
