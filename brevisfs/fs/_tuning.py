"""Larger and more requests than the kernel sends by default, and less memory than malloc takes."""

import ctypes
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("brevisfs.fs")

REQUEST = 1024 * 1024
"""The largest request of the kernel, in bytes."""

# What readers in order and page faults make requests of: see docs/design/mount.md.
_READ_AHEAD = REQUEST // 2
_REQUESTS_IN_BACKGROUND = 64

# glibc's M_ARENA_MAX, M_MMAP_THRESHOLD (above any request and answer, which would else be mapped anew each
# time) and M_TRIM_THRESHOLD. The last two it otherwise raises up to 32 and 64 MiB.
_MALLOC = {-8: 1, -3: REQUEST + 64 * 1024, -1: 8 * REQUEST}


def spare_memory() -> None:
    """Keeps what threads have freed from adding up: one arena for all, where glibc gives each its own, up to
    eight a core.

    To be called before there are threads. Does nothing with another libc.
    """
    with suppress(AttributeError):
        for parameter, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def tune(device: int) -> None:
    """Sets the read-ahead and the number of background requests of the mount with this device number.

    What is not permitted is left as it is, and logged.
    """
    major, minor = os.major(device), os.minor(device)
    connection = Path(f"/sys/fs/fuse/connections/{minor}")
    _set(Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb"), _READ_AHEAD // 1024)
    _set(connection / "max_background", _REQUESTS_IN_BACKGROUND)
    _set(connection / "congestion_threshold", _REQUESTS_IN_BACKGROUND * 3 // 4)


def _set(setting: Path, value: int) -> None:
    try:
        setting.write_text(f"{value}\n")
    except OSError as error:
        log.info("%s stays as it is, reading may be slower: %s", setting, error.strerror)
