"""Why a mount cannot be made or ended."""

from typing import ClassVar

from brevisfs.errors import BrevisError, ExitCode


class NoFuse(BrevisError):
    """The machine has no FUSE, or not all of it."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_FUSE


class MountpointUnusable(BrevisError):
    """The mountpoint is not an empty folder of its own, or no mount of ours is there to be ended."""

    exit_code: ClassVar[ExitCode] = ExitCode.MOUNTPOINT


class MountBusy(BrevisError):
    """Somebody still uses the mount."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUSY


class MountFailed(BrevisError):
    """The kernel refused the mount, or the daemon ended before it answered."""


class BadOption(BrevisError):
    """An option has a value that it cannot have."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE
