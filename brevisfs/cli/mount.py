"""brevisfs mount: a store as a folder of plain files."""

import re
from pathlib import Path
from typing import Any

import click

from brevisfs import fs
from brevisfs.cli._files import as_path
from brevisfs.errors import ExitCode

_SIZE = re.compile(r"(\d+) ?([KMGT]?)(i?B)?", re.IGNORECASE)


def _bytes(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; write it as 512M or 2G", context, option)
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


@click.command()
@click.argument("store", type=as_path)
@click.argument("mountpoint", type=as_path)
@click.option("--foreground", is_flag=True, help="Serve in this process until it is unmounted or ended.")
@click.option(
    "--cache-size", metavar="SIZE", callback=_bytes, help="Memory for decoded data  [default: 512M]"
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads that decode  [default: one a core]")
@click.option("--log", type=as_path, help="File to log to  [default: syslog, or stderr]")
def command(
    store: Path,
    mountpoint: Path,
    foreground: bool,
    cache_size: int | None,
    threads: int | None,
    log: Path | None,
) -> int:
    """Mount the folder STORE on the empty folder MOUNTPOINT.

    X.brv of the store is X there, and everything else is what it is. Returns once the mount answers.
    """
    chosen: dict[str, Any] = {"cache_size": cache_size, "threads": threads, "log": log}
    options = fs.MountOptions(**{name: value for name, value in chosen.items() if value is not None})
    if foreground:
        fs.mount_foreground(store, mountpoint, options)
    else:
        fs.mount_background(store, mountpoint, options)
    return ExitCode.OK
