"""brevisfs umount: the end of a mount."""

from pathlib import Path

import click

from brevisfs import fs
from brevisfs.cli._files import as_path
from brevisfs.errors import ExitCode


@click.command()
@click.argument("mountpoint", type=as_path)
@click.option("--lazy", is_flag=True, help="Take the mount away now; it ends when nobody uses it any more.")
def command(mountpoint: Path, lazy: bool) -> int:
    """Unmount MOUNTPOINT. Returns when the mount is gone and its store is free."""
    fs.umount(mountpoint, lazy)
    return ExitCode.OK
