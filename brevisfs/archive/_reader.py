"""Reading any range of the original out of an archive.

Untrusted input: every length is compared with what the format allows and with the size of the
archive before anything is allocated for it. Archives are read with pread and never mapped, because
a truncated file under a mapping is a SIGBUS for the whole process.

Buffers are numpy arrays and not memoryviews: CPython before 3.12.7 crashes (gh-77894) when the
garbage collector takes apart a reference loop with a memoryview that is in use by something else,
and an error in such a loop brings these frames into it by its traceback.

Three things are checked at three times. Opening checks the head, the tail and the index, so that any
range finds its blocks. The first touch of a section checks where its payloads lie and its program, so
that damage there costs that section alone. Every decode checks its blocks.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from brevisfs import _native
from brevisfs.archive import _layout
from brevisfs.archive._errors import DamagedArchive, NotArchive, UnsupportedArchive
from brevisfs.archive._layout import Blocks, Ref, Section, Table, Tail

Bytes: TypeAlias = npt.NDArray[np.uint8]

_PARTS = 256
"""Sections beyond which a range is read in several steps."""

_Part: TypeAlias = tuple[Section, _native.Stored, int, int]
"""Of a section the bytes from one to before another."""


def is_archive(fd: int) -> bool:
    """Whether the file begins or ends as an archive does, damaged or not. OSError passes through."""
    return _marked(os.pread(fd, 8, 0), _last(fd, os.fstat(fd).st_size, 8))


def original_length(fd: int) -> int:
    """Bytes of the original, from the head or, if that is damaged, the tail.

    Works for archives of other format versions. Raises NotArchive or DamagedArchive.
    """
    head = os.pread(fd, _layout.HEAD_SIZE, 0)
    length = _layout.head_length(head)
    if length is None:
        tail = _last(fd, os.fstat(fd).st_size, _layout.TAIL_SIZE)
        if not _marked(head, tail):
            raise NotArchive("not a BrevisFS archive")
        length = _layout.unpack_tail(tail).length
    if length >= _layout.MAX_ORIGINAL:
        raise DamagedArchive(f"no original can have {length} bytes, as the archive says")
    return length


class Reader:
    """An open archive; every method may be called from several threads at once.

    `size` is the original's length in bytes, `stored` the archive's, `sha256` the digest of the
    original, `archive_check` the XXH3 of the archive before its tail, `index` what native code takes
    to read it. Prepared programs of more than `programs` bytes are let go of before one more is prepared.
    The descriptor stays the caller's, who closes it after the last call. OSError from reading it passes
    through.
    """

    def __init__(self, fd: int, programs: int = 32 << 20) -> None:
        """Read head, tail and index. Raises NotArchive, DamagedArchive or UnsupportedArchive."""
        self._fd = fd
        self.stored = os.fstat(fd).st_size
        tail, index = _read_index(fd, self.stored)
        self.size = tail.length
        self.sha256 = tail.sha256
        self.archive_check = tail.archive_check
        split = tail.blocks * _layout.BLOCK_ENTRY_SIZE
        self._blocks: Blocks = index[:split].view("<u8").reshape(-1, 2)
        self._table: Table = _layout.unpack_entries(index[split:])
        _layout.place_sections(self._table, self._blocks[:, 0], tail)
        self.index = _native.Index(self._table, self._blocks, tail.index_offset, tail.length)
        # Signed like Python's numbers: numpy would turn all of an unsigned array into floats to compare it.
        self._offsets = self._table["offset"].astype(np.int64)
        self._known_good = np.zeros(tail.sections, np.bool_)
        held = (index, self._table, self._offsets, self._known_good)
        self._index_memory = sum(array.nbytes for array in held)
        self._lock = threading.Lock()
        self._recent: Section | None = None
        self._prepared: dict[int, tuple[Section, _native.Stored]] = {}
        self._program_memory = 0
        self._most_program_memory = programs

    @property
    def sections(self) -> Sequence[Section]:
        """The sections in the order of the original."""
        return _Sections(self._table)

    @property
    def blocks(self) -> int:
        """How many blocks the archive has."""
        return len(self._blocks)

    @property
    def memory(self) -> int:
        """Bytes held for the index and for prepared programs."""
        return self._index_memory + self._program_memory

    def move(self, fd: int) -> None:
        """Read from another descriptor of the same file. No other call may be going on."""
        self._fd = fd

    def drop_programs(self) -> None:
        """Let go of prepared programs; the next read of a section prepares its own again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._prepared = {}
        self._program_memory = 0

    def section_at(self, offset: int) -> Section:
        """The section that holds byte `offset` of the original. Raises ValueError if none does."""
        if not 0 <= offset < self.size:
            raise ValueError(f"byte {offset} is not one of the original's {self.size}")
        recent = self._recent
        if recent is None or not recent.offset <= offset < recent.end:
            index = int(self._offsets.searchsorted(offset, "right")) - 1
            prepared = self._prepared.get(index)
            recent = prepared[0] if prepared else _layout.section_at(self._table, index)
            self._recent = recent
        return recent

    def program(self, section: Section) -> tuple[bytes, bytes]:
        """The section's program in wire form and its shared parts. Raises DamagedArchive."""
        data = np.empty(section.prologue, np.uint8)
        _fill(self._fd, section.record, data)
        try:
            return self.index.prologue(section.index, data)
        except _native.ProgramRefused as error:
            raise _layout.lost_section(section, str(error)) from None

    def describe(self, section: Section) -> tuple[bytes, bytes, npt.NDArray[np.uint64]]:
        """Program, shared parts and the stored bytes of every block's payload. Raises DamagedArchive."""
        ends = self._entries(section)[:, 0]
        starts = np.concatenate(([np.uint64(section.record + section.prologue)], ends[:-1]))
        return (*self.program(section), ends - starts - np.uint64(_layout.LENGTH_SIZE))

    def read_into(self, offset: int, out: Any) -> None:
        """Fill the writable buffer `out` with the original's bytes from `offset` on.

        Raises ValueError if the range passes the original's end, BlockDamaged, DamagedArchive or
        UnsupportedArchive (which name the section) if a part cannot be read; what `out` holds then
        is undefined.
        """
        view: Bytes = np.frombuffer(out, np.uint8)
        if not view.flags.writeable:
            raise TypeError("the buffer to read into is not writable")
        end = offset + len(view)
        if offset < 0 or end > self.size:
            raise ValueError(f"bytes {offset} to {end} are not all of the original's {self.size}")
        done = offset
        while done < end:
            found, stop = self._found(done, end)
            self._fill(found, view[done - offset : stop - offset])
            done = stop

    def _found(self, offset: int, end: int) -> tuple[list[_Part], int]:
        """The parts that make up [offset, end), or up to where their programs do not take much memory."""
        parts: list[_Part] = []
        memory = 0
        while offset < end and len(parts) < _PARTS and memory <= self._most_program_memory // 2:
            section = self.section_at(offset)
            prepared = self._prepared.get(section.index)
            stored = prepared[1] if prepared else self._prepare(section)
            stop = min(end, section.end)
            parts.append((section, stored, offset - section.offset, stop - section.offset))
            memory += stored.program.memory
            offset = stop
        return parts, offset

    def _fill(self, parts: list[_Part], out: Bytes) -> None:
        try:
            _native.read(self._fd, [part[1:] for part in parts], out)
        except _native.BlockDamaged as error:
            section = parts[error.part][0]
            where = _referred(section) if error.in_target else ""
            raise _layout.lost_block(section, error.block, f"{where}{error}") from None

    def _entries(self, section: Section) -> Blocks:
        index = section.index
        entries = self._blocks[section.first_block : section.first_block + section.blocks]
        if not self._known_good[index]:
            if not self.index.blocks_good(index):
                raise _layout.lost_section(section, "its part of the index is damaged")
            self._known_good[index] = True
        return entries

    def _prepare(self, section: Section) -> _native.Stored:
        target = None if section.ref == Ref.NONE else self._target(section)
        with self._lock:
            if prepared := self._prepared.get(section.index):
                return prepared[1]
            return self._keep(section, *self.program(section), target)

    def _target(self, section: Section) -> _native.Stored:
        """What a section refers to, which itself refers to nothing."""
        target = _layout.section_at(self._table, section.target)
        try:
            prepared = self._prepared.get(target.index)
            return prepared[1] if prepared else self._prepare(target)
        except (DamagedArchive, UnsupportedArchive) as error:
            if error.section is None:
                raise
            reason = _referred(section) + error.reason
            raise type(error)(reason, section.index, section.offset, section.end) from None

    def _keep(
        self, section: Section, wire: bytes, shared: bytes, target: _native.Stored | None
    ) -> _native.Stored:
        """The section, prepared and kept. The caller holds the lock."""
        entries = self._entries(section)
        try:
            program = _native.Program(wire, shared, section.bits, section.count, section.block)
        except _native.UnknownCode as error:
            raise UnsupportedArchive(str(error), section.index, section.offset, section.end) from None
        except (_native.ProgramRefused, _native.BlockDamaged) as error:
            # The latter for what a Repeat repeats: it is a payload among the shared parts.
            raise _layout.lost_section(section, str(error)) from None
        start = section.record + section.prologue
        stored = _native.Stored(program, entries, start, target, section.ref)
        if self._program_memory > self._most_program_memory:
            self._drop()
        self._prepared[section.index] = section, stored
        self._program_memory += program.memory
        return stored


class _Sections(Sequence[Section]):
    def __init__(self, table: Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> Section: ...
    @overload
    def __getitem__(self, index: slice) -> list[Section]: ...
    def __getitem__(self, index: int | slice) -> Section | list[Section]:
        numbers = range(len(self._table))[index]
        if isinstance(numbers, int):
            return _layout.section_at(self._table, numbers)
        return [_layout.section_at(self._table, number) for number in numbers]


def _read_index(fd: int, stored: int) -> tuple[Tail, Bytes]:
    head = os.pread(fd, _layout.HEAD_SIZE, 0)
    end = _last(fd, stored, _layout.TAIL_SIZE)
    if not _marked(head, end):
        raise NotArchive("not a BrevisFS archive")
    length = _layout.unpack_head(head)
    tail = _layout.unpack_tail(end)
    if tail.length != length or tail.head_check.to_bytes(8, "little") != head[40:48]:
        raise DamagedArchive("head and tail of the archive do not belong together")
    size = tail.blocks * _layout.BLOCK_ENTRY_SIZE + tail.sections * _layout.SECTION_ENTRY.itemsize
    if tail.index_offset + size + _layout.TAIL_SIZE != stored:
        raise DamagedArchive(f"the archive has {stored} bytes, its tail was written for another length")
    records = tail.sections * _layout.LEAST_PROLOGUE + tail.blocks * _layout.LENGTH_SIZE
    if _layout.HEAD_SIZE + records > tail.index_offset:
        # Before any memory is taken: a sparse file may claim an index of any size.
        raise DamagedArchive("the archive has no room for the sections and blocks that its index lists")
    index = np.empty(size, np.uint8)
    _fill(fd, tail.index_offset, index)
    if _native.checksum(index) != tail.index_check:
        raise DamagedArchive("the index of the archive is damaged")
    return tail, index


def _marked(head: bytes, end: bytes) -> bool:
    return head.startswith(_layout.HEAD_MAGIC) or end.endswith(_layout.TAIL_MAGIC)


def _last(fd: int, stored: int, length: int) -> bytes:
    return os.pread(fd, length, max(0, stored - length))


def _fill(fd: int, offset: int, out: Bytes) -> None:
    done = 0
    while done < len(out):
        got = os.preadv(fd, [out[done:].data], offset + done)
        if not got:
            raise DamagedArchive(f"the archive ends at byte {offset + done}, in the middle of a section")
        done += got


def _referred(section: Section) -> str:
    return f"section {section.target}, to which it refers: "
