"""Checking all of an archive, and naming everything that is wrong with it."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from brevisfs import _native
from brevisfs.archive import _layout
from brevisfs.archive._errors import ArchiveError, DamagedArchive, Mismatch, UnsupportedArchive
from brevisfs.archive._layout import Section
from brevisfs.archive._pieces import Buffers, in_order, pieces
from brevisfs.archive._reader import Bytes, Reader

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found: sizes in bytes, counts, and every fault in the order of the original.

    A fault with a `section` costs the bytes it names; one without costs none by itself.
    """

    original: int
    stored: int
    sections: int
    blocks: int
    sha256: bytes
    faults: list[ArchiveError]

    @property
    def ok(self) -> bool:
        """Whether every byte of the archive and of the original is right."""
        return not self.faults


def verify(fd: int, progress: Callable[[int, int], None] | None = None, threads: int = 1) -> VerifyReport:
    """Decode everything, by `threads` threads, and compare every checksum, length and the SHA-256.

    `progress` is called with the bytes of the original checked so far, and all of them. Raises what
    opening a Reader raises; faults after that are reported, not raised. OSError passes through.
    """
    reader = Reader(fd)
    faults: list[ArchiveError] = []
    original, archive = hashlib.sha256(), _ArchiveSum(fd)
    sections = iter(reader.sections)
    ahead = next(sections, None)
    for begin, part, found in _decoded(reader, threads):
        end = begin + len(part)
        original.update(part.data)
        for fault in found:
            # A section lost as a whole is met again in each of its pieces.
            if not faults or str(fault) != str(faults[-1]):
                faults.append(fault)
        while ahead is not None and ahead.offset < end:
            # Right behind the decoder, while the bytes are still in the page cache.
            archive.advance(ahead.record)
            faults += _length_faults(fd, reader, ahead)
            ahead = next(sections, None)
        if progress:
            progress(end, reader.size)
    archive_check = archive.advance(reader.stored - _layout.TAIL_SIZE)
    if not faults and original.digest() != reader.sha256:
        faults.append(Mismatch("the decoded bytes are not the original's: their SHA-256 differs"))
    if not faults and archive_check != reader.archive_check:
        faults.append(DamagedArchive("the checksum over the archive differs, though every block decodes"))
    return VerifyReport(
        original=reader.size,
        stored=reader.stored,
        sections=len(reader.sections),
        blocks=reader.blocks,
        sha256=reader.sha256,
        faults=faults,
    )


class _ArchiveSum:
    """The XXH3 of the archive from its start, moved on step by step."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._hash = _native.Checksum()
        self._position = 0

    def advance(self, end: int) -> int:
        while self._position < end:
            data = os.pread(self._fd, min(_PIECE, end - self._position), self._position)
            if not data:
                raise DamagedArchive(f"the archive ends at byte {self._position}, before its tail")
            self._hash.update(data)
            self._position += len(data)
        return self._hash.value


def _decoded(reader: Reader, threads: int) -> Iterator[tuple[int, Bytes, list[ArchiveError]]]:
    """The original in pieces: where each begins, its bytes, the faults met in it."""
    buffers = Buffers(threads)

    def work(slot: int, piece: tuple[int, int]) -> tuple[int, Bytes, list[ArchiveError]]:
        begin, end = piece
        out = buffers.get(slot, end - begin)
        return begin, out, list(_faults(reader, begin, end, out))

    return in_order(work, pieces(reader), threads)


def _faults(reader: Reader, begin: int, end: int, out: Bytes) -> Iterator[ArchiveError]:
    while begin < end:
        try:
            reader.read_into(begin, out[: end - begin])
            return
        except (DamagedArchive, UnsupportedArchive) as error:
            if error.section is None:
                raise
            if error.begin > begin:
                yield from _faults(reader, begin, error.begin, out)
            yield error
            begin = error.end


def _length_faults(fd: int, reader: Reader, section: Section) -> Iterator[ArchiveError]:
    """Blocks whose length in front of their payload is not what the index says."""
    try:
        lengths = reader.describe(section)[2]
    except DamagedArchive:
        return  # decoding meets it too and reports it
    at = section.record + section.prologue
    for block, length in enumerate(map(int, lengths)):
        if os.pread(fd, 4, at) != length.to_bytes(4, "little"):
            yield _layout.lost_block(section, block, "its length and the index disagree")
        at += 4 + length
