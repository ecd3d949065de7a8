"""Heads, records, index and tail as bytes (docs/format.md): pure functions, no files."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from brevisfs import _native
from brevisfs.archive._errors import BlockDamaged, DamagedArchive, UnsupportedArchive

Data: TypeAlias = bytes | bytearray | memoryview
Blocks: TypeAlias = npt.NDArray[np.uint64]
"""Block entries: [blocks, 2], the end of each payload in the archive and the checksum of its bytes."""
Table: TypeAlias = np.ndarray[Any, np.dtype[np.void]]
"""Sections, of the fields of `Section`."""

HEAD_MAGIC = b"\x89BRV\r\n\x1a\n"
TAIL_MAGIC = HEAD_MAGIC[::-1]
RECORD_MAGIC = b"BS"
VERSION = 1
KNOWN_INCOMPATIBLE = 0

HEAD_SIZE = 48
LEAST_PROLOGUE = 18
LENGTH_SIZE = 4
TAIL_SIZE = 104
BLOCK_ENTRY_SIZE = 16

MAX_ORIGINAL = 2**60
MAX_BLOCK = 2**20
MAX_PROGRAM = 2**16
MAX_SHARED = 2**26
MAX_PROLOGUE = 64 + MAX_PROGRAM + MAX_SHARED
BLOCK_GRAIN = 64
"""Block sizes are multiples of it."""

DTYPES = (
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ"),
    *("F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"),
)
"""The dtypes with a code, that of the first being 1."""
_CODES = {dtype: code for code, dtype in enumerate(DTYPES, 1)}

_HEAD = struct.Struct("<8sIIQQQ")
_RECORD = struct.Struct("<2sBBB")
_TAIL = struct.Struct("<QQQQQQ32sQ")
_U64 = struct.Struct("<Q")

SECTION_ENTRY = np.dtype(
    [
        ("count", "<u8"),
        ("prologue", "<u4"),
        ("target", "<u4"),
        ("grains", "<u2"),
        ("bits", "u1"),
        ("form", "u1"),
        ("code", "u1"),
    ]
)

_SECTION = np.dtype(
    [
        ("offset", "u8"),
        ("record", "u8"),
        ("count", "u8"),
        ("first_block", "u8"),
        ("prologue", "u4"),
        ("block", "u4"),
        ("bits", "u1"),
        ("kind", "u1"),
        ("code", "u1"),
        ("ref", "u1"),
        ("target", "u4"),
    ]
)
"""What is kept of a section: its entry, and where it begins, which follows from the entries before it.

Laid out as brv_entry of native/brevis.h.
"""

_FIELDS = _SECTION.names or ()


class Kind(IntEnum):
    """What a section holds."""

    BYTES = 0
    HEADER = 1
    TENSOR = 2
    GROUP = 3


class Ref(IntEnum):
    """What a section's program gives: its words, or what is xored with, or added to, another's."""

    NONE = 0
    XOR = 1
    ADD = 2


ADDED_BITS = (8, 16, 32, 64)
"""Widths of the words that can be added to others."""


@dataclass(frozen=True, slots=True)
class Section:
    """A run of the original's bytes with one program.

    `index` is its number in the archive, `offset` its first byte in the original, `code` its dtype
    code. It has `count` words of `bits` bits in blocks of `block` words. Its record starts at byte
    `record` of the archive with a prologue of `prologue` bytes; `first_block` is the number of its
    first block entry. Unless `ref` is NONE it refers to section `target`.
    """

    index: int
    kind: Kind
    code: int
    offset: int
    bits: int
    count: int
    block: int
    record: int
    prologue: int
    first_block: int
    ref: Ref = Ref.NONE
    target: int = 0

    @property
    def dtype(self) -> str | None:
        """The dtype as safetensors calls it, None if there is none, several, or one not known here."""
        return DTYPES[self.code - 1] if 1 <= self.code <= len(DTYPES) else None

    @property
    def size(self) -> int:
        """Bytes of the original in this section."""
        return self.count * self.bits // 8

    @property
    def end(self) -> int:
        """The first byte of the original after this section."""
        return self.offset + self.size

    @property
    def blocks(self) -> int:
        """How many blocks the section has."""
        return -(-self.count // self.block)

    @property
    def block_size(self) -> int:
        """Decoded bytes of every block but the last."""
        return self.block * self.bits // 8


class Tail(NamedTuple):
    """The last bytes of an archive: positions, counts and checksums."""

    index_offset: int
    sections: int
    blocks: int
    length: int
    index_check: int
    archive_check: int
    sha256: bytes
    head_check: int


def difference(data: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], bits: int, ref: Ref) -> Any:
    """What a section's program gives for flat bytes `data` where its target has `target`, as flat bytes.

    Words have `bits` bits: 8, 16, 32 or 64 for ADD.
    """
    if ref == Ref.XOR:
        return data ^ target
    words = np.dtype(f"<u{bits // 8}")
    return (data.view(words) - target.view(words)).view(np.uint8)


def dtype_code(dtype: str | None) -> int:
    """The code of a dtype; 0 for None and for dtypes without one."""
    return _CODES.get(dtype or "", 0)


def max_payload(decoded: int) -> int:
    """The most bytes the payload of a block of `decoded` bytes may have."""
    return 16 * decoded + 2**16


def pack_head(length: int) -> bytes:
    """The head of an archive of an original of `length` bytes."""
    head = _HEAD.pack(HEAD_MAGIC, VERSION, 0, 0, 0, length)
    return head + _U64.pack(_native.checksum(head))


def head_length(data: bytes) -> int | None:
    """The original's length from a head of any version, None if the head is damaged."""
    if len(data) < HEAD_SIZE or data[:8] != HEAD_MAGIC or not _checks(data, 40):
        return None
    return int(_HEAD.unpack_from(data)[5])


def unpack_head(data: bytes) -> int:
    """The original's length from the head of an archive that can be read here.

    Raises DamagedArchive or UnsupportedArchive.
    """
    length = head_length(data)
    if length is None:
        raise DamagedArchive("the head of the archive is damaged")
    _, version, reserved, incompatible, _, _ = _HEAD.unpack_from(data)
    if version != VERSION:
        raise UnsupportedArchive(f"the archive is of format version {version}, this program reads {VERSION}")
    unknown = incompatible & ~KNOWN_INCOMPATIBLE
    if unknown:
        raise UnsupportedArchive(f"the archive needs features not known here (mask {unknown:#x})")
    if reserved or length >= MAX_ORIGINAL:
        raise DamagedArchive("the head of the archive breaks a rule of the format")
    return length


def pack_tail(tail: Tail) -> bytes:
    """The tail as bytes."""
    data = _TAIL.pack(*tail)
    return data + _U64.pack(_native.checksum(data)) + TAIL_MAGIC


def unpack_tail(data: bytes) -> Tail:
    """The tail from the last TAIL_SIZE bytes of an archive. Raises DamagedArchive."""
    if len(data) < TAIL_SIZE or data[96:] != TAIL_MAGIC:
        raise DamagedArchive("the end of the archive is missing: it was cut off or not written to its end")
    if not _checks(data, 88):
        raise DamagedArchive("the tail of the archive is damaged")
    return Tail(*_TAIL.unpack_from(data))


def pack_prologue(section: Section, wire: Data, shared: Data) -> bytes:
    """The first bytes of a section's record, before its blocks."""
    head = _record_head(section, len(wire), len(shared))
    body = bytes(wire) + bytes(shared)
    return head + _U64.pack(_native.checksum(head + body)) + body


def lost_section(section: Section, reason: str) -> DamagedArchive:
    """The error for a section that cannot be read."""
    return DamagedArchive(reason, section.index, section.offset, section.end)


def lost_block(section: Section, block: int, reason: str) -> BlockDamaged:
    """The error for one block that cannot be read."""
    begin = section.offset + block * section.block_size
    return BlockDamaged(reason, section.index, begin, min(section.end, begin + section.block_size), block)


def pack_entry(section: Section) -> bytes:
    """The section entry."""
    grains, form = section.block // BLOCK_GRAIN, section.kind | section.ref << 4
    fields = (section.count, section.prologue, section.target, grains, section.bits, form, section.code)
    return np.array([fields], SECTION_ENTRY).tobytes()


def unpack_entries(data: Data | npt.NDArray[np.uint8]) -> Table:
    """The sections of section entries, without where they begin."""
    entries = np.frombuffer(data, SECTION_ENTRY)
    table = np.zeros(len(entries), _SECTION)
    for name in ("count", "prologue", "target", "bits", "code"):
        table[name] = entries[name]
    table["block"] = entries["grains"].astype(np.uint32) * BLOCK_GRAIN
    table["kind"], table["ref"] = entries["form"] & 15, entries["form"] >> 4
    return table


def section_at(table: Table, index: int) -> Section:
    """The section of row `index`."""
    # Every read comes by here, and numpy takes as long for one field as for the whole row.
    row = dict(zip(_FIELDS, table[index].item(), strict=True))
    return Section(
        index=index,
        kind=Kind(row["kind"]),
        code=row["code"],
        offset=row["offset"],
        bits=row["bits"],
        count=row["count"],
        block=row["block"],
        record=row["record"],
        prologue=row["prologue"],
        first_block=row["first_block"],
        ref=Ref(row["ref"]),
        target=row["target"],
    )


def broken_entry_rule(table: Table, length: int) -> str | None:
    """Which rule a section entry breaks by itself, None if none does; `length` is the original's."""
    bits, count, block = table["bits"].astype(np.uint64), table["count"], table["block"]
    if np.any((bits < 1) | (bits > 64)):
        return "a section's words are not of 1 to 64 bits"
    # Dividing first keeps count * bits, and every sum of sizes after it, inside 64 bits.
    if np.any((count < 1) | (count > np.uint64(8 * length) // bits) | (count * bits % 8 != 0)):
        return "a section's words do not fit the original"
    if np.any((block < 64) | (block > MAX_BLOCK) | (block % 64 != 0)):
        return "a section's block size is not a multiple of 64 up to 2^20"
    if np.any((table["prologue"] < LEAST_PROLOGUE) | (table["prologue"] > MAX_PROLOGUE)):
        return "a section's prologue has an impossible length"
    if np.any(table["kind"] > max(Kind)):
        return "a section's kind is not known"
    if np.any(table["ref"] > max(Ref)) or np.any((table["ref"] == Ref.NONE) & (table["target"] != 0)):
        return "a section refers to another in a way that is not known"
    return None


def broken_ref_rule(table: Table, targets: Table) -> str | None:
    """Which rule the references of sections to the targets given for them break, None if none does."""
    if np.any(targets["ref"] != Ref.NONE):
        return "a section refers to one that itself refers to another"
    if any(np.any(table[name] != targets[name]) for name in ("bits", "count", "block")):
        return "a section refers to one of another type or block size"
    if np.any((table["ref"] == Ref.ADD) & ~np.isin(table["bits"], ADDED_BITS)):
        return "a section adds words that are not of 8, 16, 32 or 64 bits"
    return None


def place_sections(table: Table, ends: npt.NDArray[np.uint64], tail: Tail) -> None:
    """Fill in where the sections begin, given the ends of all payloads.

    Raises DamagedArchive unless they tile the original, the block entries and the archive.
    """
    rule = broken_entry_rule(table, tail.length)
    referring = np.flatnonzero(table["ref"])
    if not rule and len(referring):
        targets = table["target"][referring]
        if np.any(targets >= referring):
            rule = "a section refers to one that is not before it"
        else:
            rule = broken_ref_rule(table[referring], table[targets])
    if rule:
        raise DamagedArchive(f"the index of the archive is damaged: {rule}")
    count, block = table["count"], table["block"].astype(np.uint64)
    blocks = (count + block - np.uint64(1)) // block
    if not _begin(table["offset"], count * table["bits"] // np.uint64(8), tail.length):
        raise DamagedArchive("the index of the archive is damaged: its sections do not make up the original")
    if not _begin(table["first_block"], blocks, tail.blocks):
        raise DamagedArchive("the index of the archive is damaged: its blocks are not those of its sections")
    # The first payload of a section comes behind the last one of the section before, and a prologue.
    table["record"][:1] = HEAD_SIZE
    table["record"][1:] = ends[table["first_block"][1:] - np.uint64(1)]
    if not _rise(table["record"], table["prologue"] + np.uint64(4) * blocks, tail.index_offset):
        raise DamagedArchive("the index of the archive is damaged: its records do not follow one another")


def _record_head(section: Section, program: int, shared: int) -> bytes:
    head = _RECORD.pack(RECORD_MAGIC, section.kind | section.ref << 4, section.code, section.bits)
    numbers = (section.count, section.block // BLOCK_GRAIN, program, shared)
    return head + b"".join(map(_varint, (*numbers, section.target) if section.ref else numbers))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _begin(starts: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], total: int) -> bool:
    """Put in `starts` where things of these sizes begin, side by side; False if they are not `total`."""
    # None is above the total, so no sum wraps around before it is above the total itself.
    if np.any(sizes > total):
        return False
    ends = np.cumsum(sizes, dtype=np.uint64)
    starts[1:] = ends[:-1]
    return not np.any(ends > total) and (int(ends[-1]) if len(ends) else 0) == total


def _rise(starts: npt.NDArray[np.uint64], least: npt.NDArray[np.uint64], end: int) -> bool:
    if not len(starts):
        return end == HEAD_SIZE
    if np.any(starts > end):
        return False
    ends = starts + least
    return bool(ends[-1] <= end and np.all(ends[:-1] <= starts[1:]))


def _checks(data: bytes, length: int) -> bool:
    return _U64.pack(_native.checksum(data[:length])) == data[length : length + 8]
