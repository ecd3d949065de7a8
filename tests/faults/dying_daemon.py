"""A daemon that is killed just before one of its changes: `python -m tests.faults.dying_daemon ARMED …`.

What follows ARMED are the arguments of brevisfs.fs.daemon. Once the file ARMED is there, with a number in it,
so many more changes are made.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from brevisfs.fs import daemon
from tests.faults.dying import watch_changes


class Countdown:
    """Kills this process when it is told for the last time."""

    def __init__(self, armed: Path) -> None:
        self._armed = armed
        self._left: int | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._left is None:
                if not self._armed.exists():
                    return
                self._left = int(self._armed.read_text())
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


if __name__ == "__main__":
    watch_changes(Countdown(Path(sys.argv[1])))
    daemon.main(*sys.argv[2:])
