"""Everything that would write: refused."""

import errno
from typing import Any, NoReturn

from pyfuse3 import FUSEError

from brevisfs.fs._state import State


async def _refuse(operations: State, *request: Any) -> NoReturn:
    raise FUSEError(errno.EROFS)


_REFUSED: Any = _refuse


class ReadOnly(State):
    """The handlers that change something."""

    create = mknod = mkdir = symlink = link = _REFUSED
    unlink = rmdir = rename = _REFUSED
    setattr = write = setxattr = removexattr = _REFUSED
