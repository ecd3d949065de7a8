"""brevisfs umount: the end of a mount."""

from pathlib import Path
from typing import Any

import click

from brevisfs import fs
from brevisfs.cli._console import complain, progress
from brevisfs.cli._files import as_path
from brevisfs.errors import ExitCode


@click.command()
@click.argument("mountpoint", type=as_path)
@click.option("--lazy", is_flag=True, help="Take the mount away now; it ends when nobody uses it any more.")
@click.option("--drain", is_flag=True, help="First wait until everything written is packed.")
def command(mountpoint: Path, lazy: bool, drain: bool) -> int:
    """Unmount MOUNTPOINT. Returns when all is on disk, the mount is gone and its store is free.

    What is still to be packed stays for the next time it is mounted.
    """
    if drain:
        _drain(mountpoint)
    fs.umount(mountpoint, lazy)
    return ExitCode.OK


def _drain(mountpoint: Path) -> None:
    with progress("packing") as bar:

        def tell(packing: dict[str, Any]) -> None:
            if bar is not None:
                running = packing["packing"]
                bar(sum(job["done"] for job in running), max(1, sum(job["total"] for job in running)))

        failed = fs.drain(mountpoint, tell)
    for job in failed:
        complain(f"{job['name']} was not packed: {job['error']}")
