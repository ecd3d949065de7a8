"""brevisfs mount: a store as a folder of plain files."""

import re
from pathlib import Path
from typing import Any

import click

from brevisfs import fs
from brevisfs.cli._files import as_path
from brevisfs.errors import ExitCode

# Those of synth.Profile, which is not loaded for this.
_PROFILES = ("fast", "balanced", "dense")
_SIZE = re.compile(r"(\d+) ?([KMGT]?)(i?B)?", re.IGNORECASE)


def _bytes(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; write it as 512M or 2G", context, option)
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@click.command()
@click.argument("store", type=as_path)
@click.argument("mountpoint", type=as_path)
@click.option("--foreground", is_flag=True, help="Serve in this process until it is unmounted or ended.")
@click.option(
    "--cache-size", metavar="SIZE", callback=_bytes, help="Memory for decoded data  [default: 512M]"
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads that decode  [default: one a core]")
@click.option("--log", type=as_path, help="File to log to  [default: syslog, or stderr]")
@click.option("--read-only", is_flag=True, help="Leave the store as it is.")
@click.option("--no-recompress", is_flag=True, help="Let written files stay plain.")
@click.option("--settle", type=click.FloatRange(min=0), help="Seconds from closing to packing  [default: 5]")
@click.option("--workers", type=click.IntRange(min=1), help="Files packed at a time  [default: 1]")
@click.option("--profile", type=click.Choice(_PROFILES), help="As of pack  [default: balanced]")
@click.option("--quiet-hours", metavar="HH:MM-HH:MM", help="When packing rests.")
@click.option("--max-load", type=float, help="Load above which packing rests  [default: 4 a core]")
def command(
    store: Path,
    mountpoint: Path,
    foreground: bool,
    cache_size: int | None,
    threads: int | None,
    log: Path | None,
    read_only: bool,
    no_recompress: bool,
    **recompression: Any,
) -> int:
    """Mount the folder STORE on the empty folder MOUNTPOINT.

    X.brv of the store is X there, and everything else is what it is. Models that are written become archives
    some time after they are closed. Returns once the mount answers.
    """
    chosen: dict[str, Any] = {"cache_size": cache_size, "threads": threads, "log": log}
    options = fs.MountOptions(
        **_given(chosen),
        read_only=read_only,
        recompression=fs.RecompressionOptions(enabled=not no_recompress, **_given(recompression)),
    )
    if foreground:
        fs.mount_foreground(store, mountpoint, options)
    else:
        fs.mount_background(store, mountpoint, options)
    return ExitCode.OK
