"""No exception of a handler reaches pyfuse3, which would end the mount."""

import errno
import inspect
import logging
from collections.abc import Sequence
from typing import Any

import pyfuse3
import pytest
import trio
from pyfuse3 import FUSEError

from brevisfs.fs._guard import guarded
from brevisfs.fs._operations import Operations


@guarded
class Failing(pyfuse3.Operations):
    def __init__(self, error: BaseException) -> None:
        self.stray = 0
        self.error = error

    async def getattr(self, inode: int, ctx: Any) -> Any:
        raise self.error

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        raise self.error


def test_a_mistake_is_eio_and_a_traceback_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    operations = Failing(ZeroDivisionError("oops"))
    with pytest.raises(FUSEError) as caught:
        trio.run(operations.getattr, 1, None)
    assert caught.value.errno == errno.EIO
    assert operations.stray == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "getattr" in record.getMessage()
    assert "oops" in caplog.text


def test_an_answer_passes(caplog: pytest.LogCaptureFixture) -> None:
    operations = Failing(FUSEError(errno.ENOENT))
    with pytest.raises(FUSEError) as caught:
        trio.run(operations.getattr, 1, None)
    assert caught.value.errno == errno.ENOENT
    assert (operations.stray, caplog.records) == (0, [])


@pytest.mark.parametrize("error", [ValueError(), FUSEError(errno.EIO)])
def test_nothing_passes_out_of_forget(error: Exception) -> None:
    operations = Failing(error)
    trio.run(operations.forget, [(1, 1)])
    assert operations.stray == 1


def test_what_ends_the_process_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        trio.run(Failing(KeyboardInterrupt()).getattr, 1, None)


def test_every_handler_is_guarded() -> None:
    handlers = dict(inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction))
    mine = {name for name, handler in handlers.items() if getattr(Operations, name) is not handler}
    assert {"lookup", "forget", "getattr", "readlink", "open", "read", "flush", "release", "statfs"} <= mine
    assert {"opendir", "readdir", "releasedir", "getxattr", "listxattr", "create", "write", "rename"} <= mine
    assert handlers.keys() - mine == {"access", "poll"}
    for name in mine:
        assert getattr(Operations, name).__code__.co_filename.endswith("_guard.py"), name
