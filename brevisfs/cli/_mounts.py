"""Which folders lie in a BrevisFS mount, as the kernel tells it. Without loading the filesystem."""

import os
from pathlib import Path

from brevisfs.errors import BrevisError

_FILESYSTEM = b"fuse.brevisfs"


class InsideMount(BrevisError):
    """An archive was to be written into a mount, which shows plain files only."""


def refuse_mount(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> None:
    """Raises InsideMount if `folder`, or what of its path is there yet, lies in a BrevisFS mount."""
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    device = there.stat().st_dev
    for line in table.read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        major, minor = map(int, before.split(b" ")[2].split(b":"))
        if after.startswith(_FILESYSTEM + b" ") and os.makedev(major, minor) == device:
            raise InsideMount(
                f"{there} is inside a BrevisFS mount, which shows plain files and takes no archives; "
                "pack in the store itself, or elsewhere with -o"
            )
