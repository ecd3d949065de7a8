"""What can be chosen about a mount."""

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from brevisfs.fs._errors import BadOption
from brevisfs.fs._reads import SMALLEST_BUDGET

_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True)
class RecompressionOptions:
    """How written files become archives again.

    A file is packed `settle` seconds after it was closed, by one of `workers` processes. None is begun
    during `quiet_hours`, "HH:MM-HH:MM" local time, and while the machine's load is above `max_load`.
    Raises BadOption for a value out of range.
    """

    enabled: bool = True
    settle: float = 5.0
    workers: int = 1
    profile: str = "balanced"
    quiet_hours: str | None = None
    max_load: float = field(default_factory=lambda: 4.0 * len(os.sched_getaffinity(0)))

    def __post_init__(self) -> None:
        if self.settle < 0 or self.workers < 1:
            raise BadOption("the settle time cannot be below 0, and there has to be at least 1 worker")
        if self.quiet_hours is not None:
            self._quiet_minutes()

    def is_quiet(self, now: time.struct_time) -> bool:
        """Whether the quiet hours contain a time of day."""
        if self.quiet_hours is None:
            return False
        begin, end = self._quiet_minutes()
        minute = now.tm_hour * 60 + now.tm_min
        return begin <= minute < end if begin <= end else not end <= minute < begin

    def _quiet_minutes(self) -> tuple[int, int]:
        match = _HOURS.fullmatch(self.quiet_hours or "")
        if match is not None:
            hours, minutes = [int(match[1]), int(match[3])], [int(match[2]), int(match[4])]
            if max(hours) < 24 and max(minutes) < 60:
                return hours[0] * 60 + minutes[0], hours[1] * 60 + minutes[1]
        raise BadOption(f"{self.quiet_hours!r} are no hours of the day; write them as 08:00-18:30")


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
    recompression: RecompressionOptions = field(default_factory=RecompressionOptions)

    def __post_init__(self) -> None:
        if self.cache_size < SMALLEST_BUDGET:
            raise BadOption(
                f"a cache of {self.cache_size} bytes is too small; give at least {SMALLEST_BUDGET >> 20} MiB"
            )
        if self.threads < 1:
            raise BadOption(f"{self.threads} threads cannot decode; give at least 1")
