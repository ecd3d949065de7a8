"""How much of the machine a worker takes."""

import os
from contextlib import suppress
from enum import Enum
from pathlib import Path


class Pace(Enum):
    """How a worker goes on: not at all for now; when nobody else wants the processor; or, because somebody
    waits for it, as anybody else."""

    PAUSED = b"p"
    MODEST = b"m"
    HURRIED = b"h"


def take_share(process: int, pace: Pace) -> None:
    """Gives a process, which has a session of its own, the priority of its pace.

    Where the kernel shares the processor among sessions first, `nice` counts only inside of one, so the
    session gets one too. Raises BlockingIOError if another's was set less than a tenth of a second ago, and
    other OSErrors if the process has ended.
    """
    os.setpriority(os.PRIO_PROCESS, process, 19)
    with suppress(FileNotFoundError, PermissionError):  # a kernel that does not
        Path(f"/proc/{process}/autogroup").write_text("0" if pace is Pace.HURRIED else "19")
