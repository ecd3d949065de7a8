"""What can be chosen about a mount."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from brevisfs.fs._cache import SMALLEST_BUDGET
from brevisfs.fs._errors import BadOption


@dataclass(frozen=True)
class MountOptions:
    """`cache_size` bounds the bytes of decoded data, indexes and work in flight; `threads` decode.

    `log` is the file to log to; without it a daemon logs to syslog, a foreground mount to its stderr.
    `read_only` mounts leave the store as it is.
    Raises BadOption for a value out of range.
    """

    cache_size: int = 512 * 1024 * 1024
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    log: Path | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        if self.cache_size < SMALLEST_BUDGET:
            raise BadOption(
                f"a cache of {self.cache_size} bytes is too small; give at least {SMALLEST_BUDGET >> 20} MiB"
            )
        if self.threads < 1:
            raise BadOption(f"{self.threads} threads cannot decode; give at least 1")
