"""Starting a worker, and hearing from it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio

from brevisfs.errors import BrevisError
from brevisfs.recompress._pace import Pace, take_share

MEMORY = 3 << 30
"""Bytes that a worker may take."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The archive is written, on disk, and the same as the source; `stored` is its size in bytes."""

    stored: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The file is none to be packed, or changed meanwhile."""

    reason: str


Outcome = Packed | Refused


class WorkerFailed(BrevisError):
    """A worker died, or could not do its work."""


async def pack_in_worker(
    source: int,
    target: int,
    profile: str,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None],
    started: Callable[[Callable[[Pace], None]], None],
) -> Outcome:
    """Packs an open file into an empty open one, in a process that ends with this one.

    `progress` is called with how much of the work is done and all of it, `started` with what sets the
    process's pace, which has to be set. Raises WorkerFailed. If cancelled, the process is gone when it
    returns. Main thread only.
    """
    command = [sys.executable, "-P", "-m", "brevisfs.recompress.worker"]
    arguments = [str(source), str(target), profile, str(jobs), str(MEMORY)]
    listening, telling = os.pipe()
    hearing, saying = os.pipe()
    try:
        async with trio.lowlevel.FdStream(hearing) as said:
            try:
                # It is told of the end of the thread that starts it: this one. That takes half a millisecond.
                process = subprocess.Popen(
                    command + arguments,
                    stdin=listening,
                    stdout=saying,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(source, target),
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(listening)
                os.close(saying)
            return await _follow(_Worker(process, telling), said, progress, started)
    finally:
        os.close(telling)


class _Worker:
    """A process and its pace. It is not stopped before it is `ready` to end when it is continued."""

    def __init__(self, process: subprocess.Popen[bytes], telling: int) -> None:
        self.process = process
        self._telling = telling
        self._pace = self._share = Pace.PAUSED
        self._ready = False

    def set_pace(self, pace: Pace) -> None:
        self._pace = pace
        share = Pace.HURRIED if pace is Pace.HURRIED else Pace.MODEST
        if share is not self._share and self.process.returncode is None:
            self._share = share
            with suppress(OSError):  # it has just ended
                os.write(self._telling, share.value)
                # It listens only when it has imported all that it needs.
                take_share(self.process.pid, share)
        self.send(signal.SIGSTOP if pace is Pace.PAUSED and self._ready else signal.SIGCONT)

    def ready(self) -> None:
        self._ready = True
        self.set_pace(self._pace)

    def send(self, number: int) -> None:
        if self.process.returncode is None:  # else its own number may be another's by now
            os.kill(self.process.pid, number)


async def _follow(
    worker: _Worker,
    stream: trio.abc.ReceiveStream,
    progress: Callable[[int, int], None],
    started: Callable[[Callable[[Pace], None]], None],
) -> Outcome:
    """A worker's way to its end."""
    process = worker.process
    try:
        started(worker.set_pace)
        said = await _listen(stream, progress, worker.ready)
    finally:
        worker.send(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            # It keeps its number until this thread knows that it has ended.
            await trio.to_thread.run_sync(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.wait()
    return _outcome(said, process.returncode)


async def _listen(
    stdout: trio.abc.ReceiveStream, progress: Callable[[int, int], None], ready: Callable[[], None]
) -> dict[str, Any]:
    """Everything that a worker says; returns what it says last."""
    said: dict[str, Any] = {}
    rest = b""
    async for data in stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "ready" in said:
                ready()
            if "done" in said:
                progress(said["done"], said["total"])
    return said


def _outcome(said: dict[str, Any], code: int | None) -> Outcome:
    match said:
        case {"stored": int(stored)}:
            return Packed(stored)
        case {"refused": str(reason)}:
            return Refused(reason)
        case {"failed": str(reason)}:
            raise WorkerFailed(reason)
    raise WorkerFailed(f"the worker ended ({code}) before it was done")
