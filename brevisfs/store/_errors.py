"""What can be wrong with a store as a whole."""

from typing import ClassVar

from brevisfs.errors import BrevisError, ExitCode


class StoreNotFound(BrevisError):
    """The store's path leads to no folder that can be read."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_FOUND


class StoreBusy(BrevisError):
    """Another daemon serves the store."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUSY
