"""brevisfs unpack: archives back into the files they hold."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from brevisfs import archive
from brevisfs.cli._console import Progress, cores, progress, say, size
from brevisfs.cli._files import SUFFIX, Batch, Item, as_path, find, opened, output_path, refuse_itself
from brevisfs.cli._output import copy_metadata, new_file
from brevisfs.errors import BrevisError, ExitCode


class NoName(BrevisError):
    """An archive whose name does not tell that of the file it holds."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Unpacked:
    """One line of the result; `size` in bytes."""

    archive: str
    file: str
    size: int
    sha256: str


@click.command()
@click.argument("archives", metavar="ARCHIVE…", nargs=-1, required=True, type=as_path)
@click.option("-o", "--output", type=click.Path(), help="File, or folder for files.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(archives: tuple[Path, ...], output: str | None, force: bool, as_json: bool) -> int:
    """Unpack archives: X.brv becomes X beside it, bit for bit what was packed. The archive stays."""
    batch = Batch()
    unpacked: list[Unpacked] = []

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            if item.in_folder and not archive.is_archive(fd):
                return
            target = _target(item, output, len(archives) == 1)
            target.parent.mkdir(parents=True, exist_ok=True)
            reader = archive.Reader(fd)
            with progress(item.path.name) as bar, new_file(target, replace=force) as out_fd:
                result = Unpacked(str(item.path), str(target), *_decode(reader, out_fd, bar))
                copy_metadata(fd, out_fd)
        unpacked.append(result)
        if not as_json:
            say(f"{result.file}: {size(result.size)}, SHA-256 {result.sha256}")

    for item in find(archives, batch.lost):
        batch.step(item, work)
    if as_json:
        say(json.dumps({"unpacked": [asdict(item) for item in unpacked], "failed": batch.failed}))
    return batch.code


def _target(item: Item, output: str | None, alone: bool) -> Path:
    name = item.path.name.removesuffix(SUFFIX)
    target = output_path(item, output, alone, name)
    if target == item.path:
        raise NoName(f"its name does not end in {SUFFIX}; name the output with -o")
    refuse_itself(item.path, target)
    return target


def _decode(reader: archive.Reader, out_fd: int, bar: Progress | None) -> tuple[int, str]:
    """Writes the original; its length and SHA-256. Raises Mismatch if that is not the recorded one."""
    digest = hashlib.sha256()
    for offset, data in archive.decoded(reader, cores()):
        digest.update(data.data)
        _write(out_fd, data)
        if bar:
            bar(offset + len(data), reader.size)
    if digest.digest() != reader.sha256:
        raise archive.Mismatch(
            "its content has another SHA-256 than the file it was made of; nothing was written"
        )
    return reader.size, digest.hexdigest()


def _write(fd: int, data: npt.NDArray[np.uint8]) -> None:
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:].data)
