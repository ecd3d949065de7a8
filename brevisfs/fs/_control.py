"""Asking a mount what it is doing, and telling it what to do, through attributes of its top folder."""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brevisfs.fs._errors import MountpointUnusable
from brevisfs.fs._xattrs import PREFIX

_SECONDS_BETWEEN = 0.2


def status(mountpoint: Path) -> dict[str, Any]:
    """`pid`, `store`, `stats`, and `recompression`, which is None if the mount is read-only.

    Raises MountpointUnusable if no mount of ours answers there.
    """
    found: dict[str, Any] = {
        "pid": int(_ask(mountpoint, b"pid") or 0),
        "store": os.fsdecode(_ask(mountpoint, b"store") or b""),
        "stats": json.loads(_ask(mountpoint, b"stats") or b"{}"),
    }
    packing = _ask(mountpoint, b"recompression", optional=True)
    return {**found, "recompression": packing and json.loads(packing)}


def command(mountpoint: Path, what: str) -> None:
    """`pause`, `resume`, `drain` or `undrain`, see Recompression.command. Raises OSError, as EROFS."""
    _ask(mountpoint, b"pid")
    os.setxattr(mountpoint, PREFIX + b"recompression", what.encode())


def drain(mountpoint: Path, progress: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Waits until nothing is left to be packed; what failed to be. `progress` is told the state now and then.

    In a read-only mount nothing ever is. Raises MountpointUnusable, OSError.
    """
    if status(mountpoint)["recompression"] is None:
        return []
    command(mountpoint, "drain")
    try:
        while True:
            packing: dict[str, Any] = status(mountpoint)["recompression"]
            progress(packing)
            if not packing["left"] and not packing["searching"]:
                failed: list[dict[str, Any]] = packing["failed"]
                return failed
            time.sleep(_SECONDS_BETWEEN)
    finally:
        command(mountpoint, "undrain")


def _ask(mountpoint: Path, what: bytes, *, optional: bool = False) -> bytes | None:
    try:
        return os.getxattr(mountpoint, PREFIX + what)
    except OSError as error:
        if optional and error.errno == errno.ENODATA:
            return None
        raise MountpointUnusable(f"{mountpoint}: no BrevisFS mount answers there: {error.strerror}") from None
