"""What a worker is told."""

from enum import Enum


class Pace(Enum):
    """How a worker goes on: not at all for now; when nobody else wants the processor; or, because somebody
    waits for it, as anybody else."""

    PAUSED = b"p"
    MODEST = b"m"
    HURRIED = b"h"
