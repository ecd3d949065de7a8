"""brevisfs verify: every byte of archives decoded and compared with its checksums."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from brevisfs import archive
from brevisfs.cli import _names
from brevisfs.cli._console import complain, cores, progress, say, size
from brevisfs.cli._files import Batch, Item, as_path, find, opened

_SHOWN = 20


@click.command()
@click.argument("archives", metavar="ARCHIVE…", nargs=-1, required=True, type=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(archives: tuple[Path, ...], as_json: bool) -> int:
    """Decode archives whole and compare checksums and SHA-256. In a folder, other files are passed over."""
    batch = Batch()
    results: list[dict[str, Any]] = []

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            if item.in_folder and not archive.is_archive(fd):
                return
            with progress(item.path.name) as bar:
                report = archive.verify(fd, progress=bar, threads=cores())
            faults = [] if report.ok else _name_faults(archive.Reader(fd), report.faults)
        digest = report.sha256.hex()
        entry = {"archive": str(item.path), "original": report.original, "sha256": digest, "faults": faults}
        results.append(entry)
        if report.ok and not as_json:
            say(f"{item.path}: whole, {size(report.original)}, SHA-256 {digest}")
        for fault in faults[:_SHOWN]:
            complain(f"{item.path}: {fault}")
        if len(faults) > _SHOWN:
            complain(f"{item.path}: and {len(faults) - _SHOWN} faults more")
        if not report.ok:
            batch.fail(report.faults[0].exit_code)

    for item in find(archives, batch.lost):
        batch.step(item, work)
    if as_json:
        say(json.dumps({"archives": results, "failed": batch.failed}))
    return batch.code


def _name_faults(reader: archive.Reader, faults: Sequence[archive.ArchiveError]) -> list[str]:
    """The faults as lines, each with the tensors that lost bytes by it."""
    named = _names.tensors(reader)
    lines = []
    for fault in faults:
        lost = [tensor.name for tensor in _names.within(named, fault.begin, fault.end)]
        lines.append(f"{fault}{'; in ' if lost else ''}{', '.join(lost)}")
    return lines
