"""Processes that are killed just before one of their system calls that change something."""

import os
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

from brevisfs.store import _syscalls

_CHANGING = (
    *("rename", "unlink", "link", "symlink", "mkdir", "rmdir", "mknod"),
    *("write", "pwrite", "ftruncate", "truncate", "fsync", "fdatasync"),
    *("chmod", "fchmod", "chown", "fchown", "utime", "setxattr", "removexattr"),
)


def watch_changes(before: Callable[[], None]) -> None:
    """Calls `before` before every system call of this process that changes a filesystem."""

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **keywords: Any) -> Any:
            before()
            return call(*arguments, **keywords)

        return change

    for name in _CHANGING:
        setattr(os, name, watched(getattr(os, name)))
    _syscalls._rename = watched(_syscalls._rename)
    opened = os.open
    creating = watched(opened)

    def open_or_create(path: Any, flags: int, *rest: Any, **keywords: Any) -> int:
        made: int = (creating if flags & os.O_CREAT else opened)(path, flags, *rest, **keywords)
        return made

    os.open = open_or_create


def steps_of(work: Callable[[], None], number: int) -> int | None:
    """Does work in a child that dies before its change `number`: None if it did, else how many it has."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        code, numbers = 1, count()
        write, finish = os.write, os._exit

        def change() -> None:
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            watch_changes(change)
            work()
            write(told, b"%d" % next(numbers))
            code = 0
        finally:
            finish(code)
    os.close(told)
    with open(ready, "rb") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, "the work failed"
    return int(said)
