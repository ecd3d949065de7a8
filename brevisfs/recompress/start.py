"""Starting a worker, and hearing from it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
    returns.
    """
    command = [sys.executable, "-P", "-m", "brevisfs.recompress.worker"]
    arguments = [str(source), str(target), profile, str(jobs), str(MEMORY)]
    listening, telling = os.pipe()
    try:
        try:
            process = await trio.lowlevel.open_process(
                command + arguments,
                stdin=listening,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(source, target),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(listening)
        return await _follow(process, progress, partial(started, partial(_set_pace, process, telling)))
    finally:
        os.close(telling)


async def _follow(
    process: trio.Process, progress: Callable[[int, int], None], started: Callable[[], None]
) -> Outcome:
    """A worker's way to its end."""
    assert process.stdout is not None
    async with process.stdout:
        try:
            started()
            said = await _listen(process.stdout, progress)
            await process.wait()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
    return _outcome(said, process.returncode)


def _set_pace(process: trio.Process, telling: int, pace: Pace) -> None:
    if process.returncode is not None:
        return  # its number may be another's by now
    with suppress(OSError):  # it has just ended
        os.write(telling, pace.value)
        # It listens only when it has imported all that it needs.
        take_share(process.pid, pace)


async def _listen(stdout: trio.abc.ReceiveStream, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Everything that a worker says; returns what it says last."""
    said: dict[str, Any] = {}
    rest = b""
    async for data in stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
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
