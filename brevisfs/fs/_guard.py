"""The one place that keeps a handler's mistake from ending the mount.

pyfuse3 ends its loop on any exception of a handler that is not a FUSEError, and every open file of every
process with it. A handler that fails otherwise answers EIO instead, and the log gets the traceback.
"""

import errno
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import pyfuse3
from pyfuse3 import FUSEError

log = logging.getLogger("brevisfs.fs")

_Handler = Callable[..., Awaitable[Any]]


class Guarded(Protocol):
    """What a guarded class must have: how many exceptions its handlers did not mean to raise."""

    stray: int


Handlers = TypeVar("Handlers", bound=type[Guarded])


def guarded(operations: Handlers) -> Handlers:
    """Wraps every request handler of the class."""
    for name, handler in inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction):
        mine = getattr(operations, name)
        if mine is not handler:
            setattr(operations, name, (_forgetting if name == "forget" else _answering)(mine))
    return operations


def _answering(handler: _Handler) -> _Handler:
    @functools.wraps(handler)
    async def guard(self: Guarded, *request: Any) -> Any:
        try:
            return await handler(self, *request)
        except FUSEError:
            raise
        except Exception:
            _report(self, handler)
            raise FUSEError(errno.EIO) from None

    return guard


def _forgetting(handler: _Handler) -> _Handler:
    @functools.wraps(handler)
    async def guard(self: Guarded, *request: Any) -> None:
        # Nobody waits for an answer to it, so not even a FUSEError may pass.
        try:
            await handler(self, *request)
        except Exception:
            _report(self, handler)

    return guard


def _report(operations: Guarded, handler: _Handler) -> None:
    operations.stray += 1
    log.exception("the handler %s failed; please report this", handler.__name__)
