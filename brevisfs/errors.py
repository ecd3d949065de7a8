"""The base of every error BrevisFS raises on purpose, and the exit codes they end a command with."""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Process exit codes of the command line; documented in the README and stable."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_SAFETENSORS = 4
    DAMAGED = 5
    UNSUPPORTED = 6
    MISMATCH = 7
    EXISTS = 8
    NO_FUSE = 9
    MOUNTPOINT = 10
    BUSY = 11
    NO_SPACE = 12
    NOT_ARCHIVE = 13


class BrevisError(Exception):
    """Something that went wrong in a way a person can be told: `str()` is one clear line.

    A subclass sets `exit_code` to what a command that fails with it returns.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
