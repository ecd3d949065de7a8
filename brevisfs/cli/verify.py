"""brevisfs verify: every byte of archives decoded and compared with its checksums."""

import json
from pathlib import Path
from typing import Any

import click

from brevisfs import archive
from brevisfs.cli._console import progress, say, size
from brevisfs.cli._files import Batch, Item, find, opened


@click.command()
@click.argument("archives", metavar="ARCHIVE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(archives: tuple[Path, ...], as_json: bool) -> int:
    """Decode archives whole and compare checksums and SHA-256. In a folder, other files are passed over."""
    batch = Batch()
    whole: list[dict[str, Any]] = []

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            if item.in_folder and not archive.is_archive(fd):
                return
            with progress(item.path.name) as bar:
                archive.verify(fd, progress=bar)
            reader = archive.Reader(fd)
        whole.append({"archive": str(item.path), "original": reader.size, "sha256": reader.sha256.hex()})
        if not as_json:
            say(f"{item.path}: whole, {size(reader.size)}, SHA-256 {reader.sha256.hex()}")

    for item in find(archives):
        batch.step(item, work)
    if as_json:
        say(json.dumps({"whole": whole, "failed": batch.failed}))
    return batch.code
