"""Which folders are BrevisFS mounts, as the kernel tells it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brevisfs.errors import BrevisError

FILESYSTEM = "fuse.brevisfs"


class InsideMount(BrevisError):
    """An archive was to be written into a mount, which shows plain files only."""


@dataclass(frozen=True)
class Mount:
    """One line of the kernel's mount table."""

    device: int
    mountpoint: Path
    source: str


def mounts(table: Path = Path("/proc/self/mountinfo")) -> Iterator[Mount]:
    """The BrevisFS mounts of this process's mount namespace."""
    for line in os.fsdecode(table.read_bytes()).splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, source, *_) = before.split(" "), after.split(" ")
        if kind == FILESYSTEM:
            major, minor = map(int, fields[2].split(":"))
            yield Mount(os.makedev(major, minor), Path(_unescape(fields[4])), _unescape(source))


def refuse_mount(folder: Path) -> None:
    """Raises InsideMount if `folder`, or what of its path is there yet, lies in a BrevisFS mount."""
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    device = there.stat().st_dev
    for mount in mounts():
        if mount.device == device:
            raise InsideMount(
                f"{there} is inside the mount of {mount.source}, which holds plain files and no archives; "
                "pack in the store itself, or elsewhere with -o"
            )


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    head, *parts = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)
