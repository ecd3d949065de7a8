"""A process that is killed just before one of its system calls that change something."""

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


def die_before(number: int, calls: Callable[[int], None] = lambda _: None) -> None:
    """Has this process killed before its change number `number`, counted from 0; `calls` is told of each."""
    numbers = count()

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **keywords: Any) -> Any:
            now = next(numbers)
            calls(now)
            if now == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return change

    for name in _CHANGING:
        setattr(os, name, dying(getattr(os, name)))
    _syscalls._rename = dying(_syscalls._rename)
    opened = os.open
    creating = dying(opened)

    def open_or_create(path: Any, flags: int, *rest: Any, **keywords: Any) -> int:
        made: int = (creating if flags & os.O_CREAT else opened)(path, flags, *rest, **keywords)
        return made

    os.open = open_or_create


def steps_of(work: Callable[[], None], number: int) -> int | None:
    """Does work in a child that dies before its change `number`: None if it did, else how many it has."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            done = 0

            def calls(now: int) -> None:
                nonlocal done
                done = now + 1

            write, finish = os.write, os._exit
            die_before(number, calls)
            work()
            write(told, b"%d" % done)
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
