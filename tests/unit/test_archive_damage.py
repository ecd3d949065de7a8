"""Damage costs what it touched and nothing else, is named, and is never met as another kind of error."""

import errno
import gc
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brevisfs import _native
from brevisfs.archive import (
    ArchiveError,
    BlockDamaged,
    DamagedArchive,
    Kind,
    Mismatch,
    NotArchive,
    Reader,
    UnsupportedArchive,
    VerifyReport,
    _layout,
    is_archive,
    original_length,
    verify,
)
from brevisfs.archive._layout import SECTION_ENTRY
from brevisfs.errors import BrevisError, ExitCode
from tests.archives import Part, assemble, encoded, opened, original, read

HEAD, TAIL, ENTRY = 48, 104, 21


def sample() -> list[Part]:
    """Four small sections, the second of several blocks and with shared tables."""
    rng = random.Random(7)
    skewed = bytes(min(int(rng.expovariate(0.3)), 15) for _ in range(200))
    return [
        encoded("Lit zstd", 8, b'\x40\0\0\0\0\0\0\0{"a": 1}' + b" " * 56, 64, Kind.HEADER),
        encoded("Lit huffman(max=9, streams=2, tables=2, segment=64)", 8, skewed, 64),
        encoded("Scan(add, Const 3)", 8, bytes(3 * i % 256 for i in range(100)), 64),
        encoded("Lit raw", 8, rng.randbytes(30), 64, Kind.BYTES),
    ]


def checked(data: bytes) -> VerifyReport:
    with opened(data) as fd:
        return verify(fd)


def opening(data: bytes) -> ArchiveError:
    """The error with which an archive is refused."""
    with opened(data) as fd, pytest.raises(ArchiveError) as caught:
        Reader(fd)
    assert "\n" not in str(caught.value)
    assert caught.value.section is None
    return caught.value


def flipped(data: bytes, at: int, mask: int = 0xFF) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def assert_rest_reads(data: bytes, whole: bytes, lost: list[tuple[int, int]]) -> None:
    """Every byte outside the lost ranges reads, and each lost one is refused."""
    with opened(data) as fd:
        reader = Reader(fd)
        position = 0
        for begin, end in [*lost, (len(whole), len(whole))]:
            assert read(reader, position, begin) == whole[position:begin]
            position = end
            if begin < end:
                for at in {begin, end - 1}:
                    with pytest.raises(ArchiveError) as caught:
                        read(reader, at, at + 1)
                    assert (caught.value.begin, caught.value.end) == (begin, end)


def test_every_flipped_byte_is_found_and_costs_what_it_touched() -> None:
    parts = sample()
    data, whole = assemble(parts), original(parts)
    index = len(data) - TAIL - 16 * sum(len(part.payloads) for part in parts) - ENTRY * len(parts)
    opens_until = {"records": 0, "refused": 0}
    for at in range(len(data)):
        bad = flipped(data, at)
        if at < HEAD or at >= index:
            assert isinstance(opening(bad), DamagedArchive)
            opens_until["refused"] += 1
            continue
        report = checked(bad)
        assert not report.ok
        lost = sorted({(fault.begin, fault.end) for fault in report.faults if fault.section is not None})
        unread = [fault for fault in report.faults if "disagree" in str(fault)]
        if unread:
            # A length before a payload is not needed to read it.
            assert_rest_reads(bad, whole, [])
        else:
            assert_rest_reads(bad, whole, lost)
        assert len(lost) == 1
        opens_until["records"] += 1
    assert all(opens_until.values())


def test_one_flipped_bit_of_every_byte_is_found() -> None:
    data = assemble(sample())
    for at in range(len(data)):
        bad = flipped(data, at, 1 << at % 8)
        try:
            assert not checked(bad).ok
        except ArchiveError:
            continue


def test_every_truncation_is_refused() -> None:
    data = assemble(sample())
    for length in range(len(data)):
        with opened(data[:length]) as fd:
            with pytest.raises((DamagedArchive, NotArchive)) as caught:
                Reader(fd)
            assert isinstance(caught.value, NotArchive) == (length < 8)
            with pytest.raises((DamagedArchive, NotArchive)):
                verify(fd)
            assert is_archive(fd) == (length >= 8)
            if length >= HEAD:
                assert original_length(fd) == 402
            else:
                with pytest.raises((DamagedArchive, NotArchive)):
                    original_length(fd)


def test_bytes_after_the_end_are_refused() -> None:
    assert "cut off" in str(opening(assemble(sample()) + b"\0"))


def test_a_missing_start_is_refused() -> None:
    data = assemble(sample())
    for length in (1, 8, 48, 100, len(data) - TAIL):
        assert isinstance(opening(data[length:]), DamagedArchive)
        with opened(data[length:]) as fd:
            assert is_archive(fd)
            assert original_length(fd) == 402


def test_the_length_survives_damage_to_either_end() -> None:
    data = assemble(sample())
    for bad in (flipped(data, 3), flipped(data, 40), flipped(data, -1), flipped(data, -20)):
        assert opening(bad).exit_code is ExitCode.DAMAGED
        with opened(bad) as fd:
            assert is_archive(fd)
            assert original_length(fd) == 402
    both = flipped(flipped(data, 33), -20)
    with opened(both) as fd, pytest.raises(DamagedArchive):
        original_length(fd)


@pytest.mark.parametrize(
    "data", [b"", b"text that is no archive", bytes(500), b"\x89BRV\r\n\x1a", b"BS" * 120]
)
def test_other_files_are_not_archives(data: bytes) -> None:
    error = opening(data)
    assert isinstance(error, NotArchive)
    assert error.exit_code is ExitCode.NOT_ARCHIVE
    with opened(data) as fd:
        assert not is_archive(fd)
        with pytest.raises(NotArchive):
            original_length(fd)


def test_without_both_magics_it_is_not_an_archive() -> None:
    assert isinstance(opening(flipped(flipped(assemble(sample()), 0), -1)), NotArchive)


@pytest.mark.parametrize(
    ("at", "why", "kind"),
    [
        (8, "of format version 254", UnsupportedArchive),
        (12, "breaks a rule", DamagedArchive),
        (16, "features not known here (mask 0xff)", UnsupportedArchive),
        (39, "breaks a rule", DamagedArchive),
    ],
)
def test_heads_of_other_versions(at: int, why: str, kind: type[ArchiveError]) -> None:
    head = flipped(assemble(sample())[:40], at)
    head += _native.checksum(head).to_bytes(8, "little")
    data = head + assemble(sample())[48:]
    error = opening(data)
    assert type(error) is kind
    assert why in str(error)
    if kind is UnsupportedArchive:
        assert error.exit_code is ExitCode.UNSUPPORTED
        with opened(data) as fd:
            assert original_length(fd) == 402


@pytest.mark.parametrize("version", [0, 7])
@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1])
def test_no_version_has_an_impossible_length(version: int, length: int) -> None:
    head = struct.pack("<8sIIQQQ", b"\x89BRV\r\n\x1a\n", version, 0, 0, 0, length)
    data = head + _native.checksum(head).to_bytes(8, "little") + assemble(sample())[48:]
    with opened(data) as fd, pytest.raises(DamagedArchive, match=str(length)):
        original_length(fd)


def test_unknown_compatible_features_do_not_matter() -> None:
    whole = assemble(sample())
    head = flipped(whole[:40], 24)
    head += _native.checksum(head).to_bytes(8, "little")
    data = sealed(head + whole[48:])
    with opened(data) as fd:
        assert read(Reader(fd), 0, 402) == original(sample())
        assert verify(fd).ok


def test_head_and_tail_of_two_archives_of_one_length_are_refused() -> None:
    whole = assemble(sample())
    head = flipped(whole[:40], 24)
    head += _native.checksum(head).to_bytes(8, "little")
    tail = whole[-TAIL:-8]
    body = head + whole[48:-TAIL]
    tail = tail[:40] + _native.checksum(body).to_bytes(8, "little") + tail[48:88]
    error = opening(body + tail + _native.checksum(tail).to_bytes(8, "little") + whole[-8:])
    assert type(error) is DamagedArchive
    assert "do not belong together" in str(error)


def test_bytes_between_index_and_tail_are_refused() -> None:
    whole = assemble(sample())
    body, tail = whole[:-TAIL] + bytes(16), whole[-TAIL:-8]
    tail = tail[:40] + _native.checksum(body).to_bytes(8, "little") + tail[48:88]
    error = opening(body + tail + _native.checksum(tail).to_bytes(8, "little") + whole[-8:])
    assert type(error) is DamagedArchive
    assert "another length" in str(error)


def sealed(data: bytes, edit: Callable[[Any, Any, dict[str, int]], None] | None = None) -> bytes:
    """The archive with block entries, section entries and tail edited and all their checksums made right."""
    tail = data[-TAIL:]
    names = ("index", "sections", "blocks", "length")
    fields = dict(zip(names, struct.unpack("<4Q", tail[:32]), strict=True))
    split = len(data) - TAIL - ENTRY * fields["sections"]
    fields["index"] = split - 16 * fields["blocks"]
    blocks = np.frombuffer(data[fields["index"] : split], "<u8").reshape(-1, 2).copy()
    table = np.frombuffer(data[split:-TAIL], SECTION_ENTRY).copy()
    if edit:
        edit(table, blocks, fields)
    index = blocks.tobytes() + table.tobytes()
    before = data[: len(data) - TAIL - len(index)] + index
    tail = struct.pack("<4Q", *fields.values())
    tail += struct.pack("<QQ", _native.checksum(index), _native.checksum(before))
    tail += data[-TAIL + 48 : -TAIL + 80] + data[40:48]
    return before + tail + _native.checksum(tail).to_bytes(8, "little") + data[-8:]


def test_sealing_changes_nothing_by_itself() -> None:
    data = assemble(sample())
    assert sealed(data) == data


ENTRY_RULES: dict[str, tuple[str, int, int, str]] = {
    "bits 0": ("bits", 1, 0, "1 to 64 bits"),
    "bits 65": ("bits", 1, 65, "1 to 64 bits"),
    "bits 255": ("bits", 1, 255, "1 to 64 bits"),
    "half a byte": ("bits", 3, 1, "do not fit"),
    "no words": ("count", 1, 0, "do not fit"),
    "too many words": ("count", 1, 403, "do not fit"),
    "words beyond 64 bits": ("count", 1, 2**64 - 1, "do not fit"),
    "words that wrap": ("count", 1, 2**61 + 200, "do not fit"),
    "block 0": ("grains", 1, 0, "multiple of 64"),
    "block above the limit": ("grains", 1, 2**14 + 1, "multiple of 64"),
    "short prologue": ("prologue", 1, 17, "impossible length"),
    "long prologue": ("prologue", 1, 2**32 - 1, "impossible length"),
    "kind": ("form", 1, 4, "kind is not known"),
    "reference": ("form", 1, 0x32, "not known"),
    "target without a reference": ("target", 1, 1, "not known"),
    "reference to itself": ("form", 0, 0x11, "not before it"),
    "reference to another type": ("form", 2, 0x12, "another type"),
    "other block size": ("grains", 1, 2, "blocks are not those"),
    "other count": ("count", 1, 199, "do not make up the original"),
    "record without room": ("prologue", 3, 4000, "records do not follow"),
}


@pytest.mark.parametrize("what", ENTRY_RULES)
def test_a_section_table_that_breaks_a_rule_is_refused(what: str) -> None:
    field, row, value, why = ENTRY_RULES[what]

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        table[field][row] = value

    error = opening(sealed(assemble(sample()), edit))
    assert type(error) is DamagedArchive
    assert why in str(error)


TAIL_RULES = {
    "index in the head": ("index", 0),
    "index elsewhere": ("index", 100),
    "index beyond 64 bits": ("index", 2**64 - 1),
    "sections beyond memory": ("sections", 2**60),
    "sections that wrap": ("sections", 2**64 - 1),
    "blocks beyond memory": ("blocks", 2**59),
    "fewer blocks": ("blocks", 1),
    "another length": ("length", 401),
    "length that wraps": ("length", 2**64 - 1),
}


@pytest.mark.parametrize("what", TAIL_RULES)
def test_a_tail_that_breaks_a_rule_is_refused_before_anything_is_allocated(what: str) -> None:
    field, value = TAIL_RULES[what]

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        tail[field] = value

    data = sealed(assemble(sample()), edit)
    tracemalloc.start()
    try:
        assert type(opening(data)) is DamagedArchive
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_an_index_larger_than_what_it_lists_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A sparse file of hardly any bytes, whose index would take 1.6 GB."""
    data, blocks = assemble(sample()), 10**8
    tail = bytearray(data[-104:])
    struct.pack_into("<QQQ", tail, 0, 48, 0, blocks)
    tail[88:96] = _native.checksum(bytes(tail[:88])).to_bytes(8, "little")
    path = tmp_path / "sparse.brv"
    with path.open("w+b") as file:
        file.write(data[:48])
        file.seek(48 + 16 * blocks)
        file.write(tail)
        file.flush()
        tracemalloc.start()
        try:
            with pytest.raises(DamagedArchive, match="no room"):
                Reader(file.fileno())
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()


def test_sections_without_an_original_and_the_reverse() -> None:
    head = struct.pack("<8sIIQQQ", b"\x89BRV\r\n\x1a\n", 1, 0, 0, 0, 5)
    head += _native.checksum(head).to_bytes(8, "little")

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        tail["length"] = 5

    assert "do not make up the original" in str(opening(sealed(head + assemble([])[48:], edit)))
    stray = assemble([])
    assert "records do not follow" in str(opening(sealed(stray[:48] + b"x" + stray[48:])))


@pytest.mark.parametrize(("row", "value"), [(2, 0), (2, 2**64 - 1), (2, 2**64 - 4), (3, 10**6), (4, 100)])
def test_block_entries_out_of_order_cost_their_section(row: int, value: int) -> None:
    parts = sample()

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        blocks[row, 0] = np.uint64(value)

    data = sealed(assemble(parts), edit)
    faults = checked(data).faults
    assert [(fault.section, fault.begin, fault.end) for fault in faults] == [(1, 72, 272)] * len(faults)
    assert "its part of the index is damaged" in str(faults[0])
    assert_rest_reads(data, original(parts), [(72, 272)])


@pytest.mark.parametrize("value", [0, 60, 10**6, 2**64 - 1])
def test_a_section_that_does_not_end_before_the_next_is_refused(value: int) -> None:
    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        blocks[5, 0] = np.uint64(value)  # the last block of the second section

    error = opening(sealed(assemble(sample()), edit))
    assert type(error) is DamagedArchive
    assert "records do not follow" in str(error)


def test_a_payload_above_its_limit_is_refused_before_it_is_allocated() -> None:
    part = encoded("Lit raw", 8, b"x" * 64, 64)
    long = bytes(16 * 64 + 2**16 + 1)
    data = assemble([part])
    index = len(data) - TAIL - ENTRY - 16
    data = data[:index] + long[64:] + data[index:]

    def edit(table: Any, blocks: Any, tail: dict[str, int]) -> None:
        blocks[0, 0] = tail["index"]

    faults = checked(sealed(data, edit)).faults
    assert "its part of the index is damaged" in str(faults[0])


def with_prologue(part: Part, **changes: Any) -> bytes:
    """One section between two others, with its record changed and its checksums right."""
    fields = {name: getattr(part, name) for name in Part.__dataclass_fields__}
    around = sample()
    return assemble([around[0], Part(**{**fields, **changes}), around[3]])


def test_an_unknown_operator_costs_its_section_alone() -> None:
    part = sample()[1]
    data = with_prologue(part, wire=bytes([200, 1, 0]))
    whole = original([sample()[0], part, sample()[3]])
    faults = checked(data).faults
    assert [type(fault) for fault in faults] == [UnsupportedArchive]
    assert str(faults[0]).startswith("section 1 (bytes 72 to 272 of the original): ")
    assert_rest_reads(data, whole, [(72, 272)])
    with opened(data) as fd:
        reader = Reader(fd)
        assert reader.program(reader.sections[1])[0] == bytes([200, 1, 0])


@pytest.mark.parametrize(
    "changes", [{"wire": b""}, {"wire": b"\1\1\0x"}, {"shared": b"\1\xff"}, {"shared": b""}]
)
def test_a_program_that_breaks_a_rule_costs_its_section_alone(changes: dict[str, bytes]) -> None:
    part = sample()[1]
    data = with_prologue(part, **changes)
    faults = checked(data).faults
    assert [(type(fault), fault.begin, fault.end) for fault in faults] == [(DamagedArchive, 72, 272)]
    assert_rest_reads(data, original([sample()[0], part, sample()[3]]), [(72, 272)])


@pytest.mark.parametrize(("program", "shared"), [(_layout.MAX_PROGRAM, 0), (0, _layout.MAX_SHARED)])
def test_a_program_or_shared_parts_above_their_limit_are_refused(program: int, shared: int) -> None:
    for more in (0, 1):
        section = _layout.Section(0, Kind.TENSOR, 1, 0, 8, 64, 64, 48, 0, 0)
        parts = bytes(program + more * (program > 0)), bytes(shared + more * (shared > 0))
        prologue = np.frombuffer(_layout.pack_prologue(section, *parts), np.uint8)
        table = _layout.unpack_entries(_layout.pack_entry(replace(section, prologue=len(prologue))))
        index = _native.Index(table, np.zeros((1, 2), np.uint64), 0, 64)
        if not more:
            assert index.prologue(0, prologue) == parts
            continue
        with pytest.raises(_native.ProgramRefused, match="a rule of the format"):
            index.prologue(0, prologue)


def test_a_damaged_payload_to_repeat_costs_its_section_alone() -> None:
    part = encoded("Repeat(4, Lit sparse(base=0))", 8, bytes([0, 0, 9, 0, 0]) * 4, 64)
    data = with_prologue(part, shared=bytes([*part.shared[:-2], 5, part.shared[-1]]))
    faults = checked(data).faults
    assert [(type(fault), fault.begin, fault.end) for fault in faults] == [(DamagedArchive, 72, 92)]
    assert_rest_reads(data, original([sample()[0], part, sample()[3]]), [(72, 92)])


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 7, 8, 9])
def test_a_record_that_disagrees_with_the_index_costs_its_section(at: int) -> None:
    parts = sample()
    data = assemble(parts)
    with opened(data) as fd:
        section = Reader(fd).sections[1]
    prologue = flipped(data[section.record : section.record + section.prologue], at, 1)
    length = section.prologue - len(parts[1].wire) - len(parts[1].shared)
    head, body = prologue[: length - 8], prologue[length:]
    prologue = head + _native.checksum(head + body).to_bytes(8, "little") + body
    data = data[: section.record] + prologue + data[section.record + section.prologue :]
    data = sealed(data)
    assert "disagrees with the index" in str(checked(data).faults[0])
    assert_rest_reads(data, original(parts), [(72, 272)])


def test_all_damage_is_reported_block_by_block() -> None:
    parts = [encoded("Lit raw", 8, random.Random(2).randbytes(64 * 50), 64), *sample()]
    data, whole = assemble(parts), original(parts)
    with opened(data) as fd:
        first = 48 + Reader(fd).sections[0].prologue
    for block in (0, 7, 8, 49):
        data = flipped(data, first + 68 * block + 4 + block)
    report = checked(data)
    assert [(type(fault), fault.begin, fault.end) for fault in report.faults] == [
        (BlockDamaged, 64 * block, 64 * block + 64) for block in (0, 7, 8, 49)
    ]
    error = report.faults[1]
    assert isinstance(error, BlockDamaged)
    assert (error.section, error.block) == (0, 7)
    assert error.exit_code is ExitCode.DAMAGED
    assert str(error).startswith("section 0 (bytes 448 to 512 of the original): block 7: ")
    assert_rest_reads(data, whole, [(0, 64), (448, 512), (512, 576), (3136, 3200)])


def test_decoded_bytes_that_are_not_the_original() -> None:
    report = checked(assemble(sample(), sha256=bytes(32)))
    assert [type(fault) for fault in report.faults] == [Mismatch]
    assert report.faults[0].exit_code is ExitCode.MISMATCH
    assert not report.ok


def test_a_file_that_shrinks_while_it_is_open() -> None:
    parts = sample()
    data = assemble(parts)
    with opened(data) as fd:
        reader = Reader(fd)
        assert read(reader, 0, 10) == original(parts)[:10]
        os.ftruncate(fd, reader.sections[3].record + 2)
        assert read(reader, 0, 72) == original(parts)[:72]
        with pytest.raises(DamagedArchive, match="ends at byte"):
            read(reader, 380, 390)


def test_errors_in_reference_loops_are_collected() -> None:
    """The hazard that the reader's own page names: a loop through a traceback, met by the collector."""
    data = flipped(assemble(sample()), 300)
    for _ in range(50):
        for fault in checked(data).faults:
            fault.args = (fault,)
    with opened(data) as fd:
        reader = Reader(fd)
        os.ftruncate(fd, 160)
        for begin in range(0, 390, 10):
            try:
                reader.read_into(begin, bytearray(10))
            except ArchiveError as error:
                error.args = (error, reader)
    del reader
    assert gc.collect() > 0


def test_errors_of_the_disk_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(assemble(sample())) as fd:
        reader = Reader(fd)

        def fail(*_: Any) -> int:
            raise OSError(errno.EIO, "bad disk")

        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match="bad disk"):
            read(reader, 0, 10)


@pytest.mark.parametrize("seed", range(300))
def test_archives_with_many_flips_never_fail_in_another_way(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(assemble(sample()))
    for _ in range(rng.choice([1, 2, 10])):
        data[rng.randrange(HEAD, len(data) - TAIL)] = rng.randrange(256)
    with opened(sealed(bytes(data))) as fd:
        try:
            report = verify(fd)
        except BrevisError as error:
            assert error.exit_code is ExitCode.DAMAGED
            return
        assert all(fault.exit_code in (ExitCode.DAMAGED, ExitCode.UNSUPPORTED) for fault in report.faults)
