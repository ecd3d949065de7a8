"""The kernel's mount table, and who uses a mount."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

FILESYSTEM = "fuse.brevisfs"

_OCTAL = re.compile(rb"\\([0-7]{3})")


def filesystem_at(mountpoint: Path) -> str | None:
    """The type of what is mounted at exactly this path, uppermost first; None if nothing is."""
    wanted = os.fsencode(mountpoint)
    found = None
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        if _unescape(before.split(b" ")[4]) == wanted:
            found = os.fsdecode(after.split(b" ")[0])
    return found


def holders(mountpoint: Path) -> list[str]:
    """The processes that use the mount, as "name (pid)", as far as this process may see them.

    Only the texts of links are looked at: touching the files might wait for the very mount.
    """
    return [
        f"{_name(process)} ({process.name})"
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and any(_below(path, mountpoint) for path in _used(process))
    ]


def _used(process: Path) -> Iterator[str]:
    try:
        links = [process / "cwd", process / "root", process / "exe", *(process / "fd").iterdir()]
        maps = (process / "maps").read_bytes().splitlines()
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(link)
        except OSError:
            continue
    for line in maps:
        yield os.fsdecode(line.split(None, 5)[-1])


def _below(path: str, mountpoint: Path) -> bool:
    return path == str(mountpoint) or path.startswith(f"{mountpoint}/")


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "process"


def _unescape(path: bytes) -> bytes:
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), path)
