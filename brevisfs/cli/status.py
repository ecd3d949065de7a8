"""brevisfs status: what a mount is doing."""

import json
from pathlib import Path

import click

from brevisfs import fs
from brevisfs.cli._console import percent, say, size
from brevisfs.cli._files import as_path
from brevisfs.errors import ExitCode


@click.command()
@click.argument("mountpoint", type=as_path)
@click.option("--pause", "wish", flag_value="pause", help="Hold up packing until --resume.")
@click.option("--resume", "wish", flag_value="resume", help="Go on with packing.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(mountpoint: Path, wish: str | None, as_json: bool) -> int:
    """Tell what the mount at MOUNTPOINT is doing: what it packs, what it unpacks, and what failed."""
    if wish is not None:
        fs.command(mountpoint, wish)
    found = fs.status(mountpoint)
    if as_json:
        say(json.dumps(found))
        return ExitCode.OK
    say(f"{found['store']} is mounted, by process {found['pid']}")
    packing = found["recompression"]
    if packing is None:
        say("read-only")
        return ExitCode.OK
    for job in packing["packing"]:
        say(f"packing {job['name']}, {percent(job['done'], job['total'])}")
    for job in packing["unpacking"]:
        say(f"unpacking {job['name']} to be written to, {percent(job['done'], job['total'])}")
    for job in packing["failed"]:
        say(f"not packed: {job['name']}: {job['error']} ({job['tries']} tries)")
    if packing["lost"]:
        say(f"{packing['lost']} in {found['store']}/.brevisfs/lost+found, to be looked at and deleted")
    paused = ", paused" if packing["paused"] else ""
    say(
        f"{packing['left']} to be packed{paused}; since it was mounted {packing['packed']} packed, "
        f"{size(packing['saved_bytes'])} saved, {packing['refused']} left as they are"
    )
    return ExitCode.OK
