"""What can be wrong with an archive."""

from typing import ClassVar

from brevisfs.errors import BrevisError, ExitCode


class ArchiveError(BrevisError):
    """Base of what goes wrong with an archive.

    Where only a part of the original is lost, `section` is its number in the archive and `begin`
    to `end` the lost bytes of the original; otherwise `section` is None.
    """

    def __init__(self, reason: str, section: int | None = None, begin: int = 0, end: int = 0) -> None:
        where = "" if section is None else f"section {section} (bytes {begin} to {end} of the original): "
        super().__init__(where + reason)
        self.reason = reason
        self.section = section
        self.begin = begin
        self.end = end


class NotArchive(ArchiveError):
    """Neither the first nor the last bytes are those of an archive."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_ARCHIVE


class UnsupportedArchive(ArchiveError):
    """The archive, or one section, needs something this version does not know."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNSUPPORTED


class DamagedArchive(ArchiveError):
    """The archive, or one section, breaks a rule of the format or fails a checksum."""

    exit_code: ClassVar[ExitCode] = ExitCode.DAMAGED


class BlockDamaged(DamagedArchive):
    """One block cannot be decoded; `block` is its number in its section."""

    def __init__(self, reason: str, section: int, begin: int, end: int, block: int) -> None:
        super().__init__(f"block {block}: {reason}", section, begin, end)
        self.block = block


class Mismatch(ArchiveError):
    """Everything decodes, but not to the bytes that the archive was made from."""

    exit_code: ClassVar[ExitCode] = ExitCode.MISMATCH
