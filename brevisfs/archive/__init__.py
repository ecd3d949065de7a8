"""The .brv container of docs/format.md: writing it, reading ranges of the original, checking it.

`fd` is always a descriptor open for reading, which stays the caller's.
"""

from brevisfs.archive._errors import (
    ArchiveError,
    BlockDamaged,
    DamagedArchive,
    Mismatch,
    NotArchive,
    UnsupportedArchive,
)
from brevisfs.archive._layout import Kind, Ref, Section, difference
from brevisfs.archive._pieces import decoded
from brevisfs.archive._reader import Reader, is_archive, original_length
from brevisfs.archive._verify import VerifyReport, verify
from brevisfs.archive._writer import Writer

__all__ = [
    "ArchiveError",
    "BlockDamaged",
    "DamagedArchive",
    "Kind",
    "Mismatch",
    "NotArchive",
    "Reader",
    "Ref",
    "Section",
    "UnsupportedArchive",
    "VerifyReport",
    "Writer",
    "decoded",
    "difference",
    "is_archive",
    "original_length",
    "verify",
]
