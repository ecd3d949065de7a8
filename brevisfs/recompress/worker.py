"""The process that packs one file: `python -m brevisfs.recompress.worker SOURCE TARGET PROFILE JOBS MEMORY`.

SOURCE and TARGET are descriptors, TARGET of an empty file. Says on stdout, a JSON object a line, how far it
is, `done` of `total`, and last what came of it: `stored` bytes, or why the file was `refused`, or why
packing it `failed`. TARGET is on disk and was compared with SOURCE when it says `stored`. Is told on stdin
which Pace to take, but for pauses, in which it is stopped; it may be once it has said anything. Ends when its
stdin does, which is when whoever started it ends. A stopped process would not notice that, so it is
continued when the thread that has started it ends.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys
import threading
import time
import traceback

from brevisfs.errors import BrevisError
from brevisfs.recompress._check import same_as
from brevisfs.recompress._pace import Pace, take_share
from brevisfs.safetensors import NotSafetensors
from brevisfs.synth import Profile, SourceChanged, pack

_SECONDS_BETWEEN = 0.5
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13
_SET_PARENT_DEATH_SIGNAL = 1
_TRIES = 20


def main(source: str, target: str, profile: str, jobs: str, memory: str) -> None:
    """Packs, syncs, compares."""
    be_modest(int(memory))
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGCONT)
    threading.Thread(target=_listen, daemon=True).start()
    _say(ready=True)
    _say(**_pack(int(source), int(target), Profile(profile), int(jobs)))


def _pack(source: int, target: int, profile: Profile, jobs: int) -> dict[str, object]:
    progress = _Progress()
    try:
        report = pack(source, target, profile=profile, jobs=jobs, progress=progress.packed)
        os.fsync(target)
        if not same_as(source, target, jobs, progress.compared):
            return {"failed": "the archive is not the same as the file; please report this"}
    except (NotSafetensors, SourceChanged) as error:
        return {"refused": str(error)}
    except (BrevisError, OSError, MemoryError) as error:
        return {"failed": str(error) or type(error).__name__}
    except Exception:
        return {"failed": traceback.format_exc()}
    return {"stored": report.stored}


def be_modest(memory: int) -> None:
    """Takes the disk only when nobody else wants it, and at most `memory` bytes."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Progress:
    """Says how far it is, packing and comparing together, not too often."""

    def __init__(self) -> None:
        self._next = 0.0

    def packed(self, done: int, total: int) -> None:
        self._tell(done, 2 * total)

    def compared(self, done: int, total: int) -> None:
        self._tell(total + done, 2 * total)

    def _tell(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN
            _say(done=done, total=total)


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _take_share(pace: Pace) -> None:
    for _ in range(_TRIES):
        try:
            take_share(os.getpid(), pace)
            return
        except BlockingIOError:
            time.sleep(0.1)


def _listen() -> None:
    while said := os.read(0, 1):
        _take_share(Pace(said))
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
