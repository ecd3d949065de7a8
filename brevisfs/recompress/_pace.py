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

    To the kernel a processor that has only such a process to run is idle: who wakes is put there at once, and
    not behind another. Where it shares the processor among sessions first, that counts only inside of one, so
    the session gets a priority too. Raises BlockingIOError if another's was set less than a tenth of a second
    ago, and other OSErrors if the process has ended.
    """
    hurried = pace is Pace.HURRIED
    with suppress(PermissionError):  # not everybody may take it back
        os.sched_setscheduler(process, os.SCHED_OTHER if hurried else os.SCHED_IDLE, os.sched_param(0))
    with suppress(FileNotFoundError, PermissionError):  # a kernel that does not
        Path(f"/proc/{process}/autogroup").write_text("0" if hurried else "19")
