"""Which files a command line names, and going through them all though some fail."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from brevisfs.cli._console import complain, describe, exit_code, trace
from brevisfs.errors import BrevisError, ExitCode
from brevisfs.store import ARCHIVE_SUFFIX, PRIVATE_FOLDER

SUFFIX = ARCHIVE_SUFFIX.decode()
"""What an archive's name adds to the name of the file it holds."""


class NotFound(BrevisError):
    """A file or folder named on the command line is not there, or is neither."""

    exit_code = ExitCode.NOT_FOUND


class OutputIsInput(BrevisError):
    """The output would take the place of the file that it is made from."""

    exit_code = ExitCode.USAGE


def as_path(path: str) -> Path:
    """The type of an argument that is a path. It is not looked at here: a wrong one fails by itself."""
    if not path:
        # To Path that is the working folder, which nobody means by it.
        raise click.BadParameter("an empty name is no file")
    return Path(path)


@dataclass(frozen=True)
class Item:
    """One file to work on: `below` is its path under the folder that was named, or its own name."""

    path: Path
    below: Path
    in_folder: bool


def find(paths: Iterable[Path], lost: Callable[[BrevisError | OSError], None]) -> Iterator[Item]:
    """The regular files among `paths` and in the folders among them, in a fixed order.

    Symlinks inside a folder are not followed. Calls `lost` with the error for a path that is no file or
    folder and for a folder that cannot be read, and goes on.
    """
    for path in paths:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            lost(NotFound(f"{path}: no such file or folder"))
            continue
        except OSError as error:
            lost(error)
            continue
        if stat.S_ISDIR(mode):
            yield from _in_folder(path, lost)
        elif stat.S_ISREG(mode):
            yield Item(path, Path(path.name), in_folder=False)
        else:
            lost(NotFound(f"{path}: neither a file nor a folder"))


def _in_folder(folder: Path, lost: Callable[[OSError], None]) -> Iterator[Item]:
    for parent, folders, names in os.walk(folder, onerror=lost):
        folders[:] = sorted(name for name in folders if name != PRIVATE_FOLDER.decode())
        for name in sorted(names):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # removed since the folder was listed
            if stat.S_ISREG(mode):
                yield Item(path, path.relative_to(folder), in_folder=True)


def output_path(item: Item, out: str | None, alone: bool, name: str) -> Path:
    """Where the output `name` of an item goes: beside it, or where `out` says.

    `out` is the output file itself where the item is `alone` on the command line, unless it ends in
    a slash or a folder is there; else it is a folder, in which the folder that was named is mirrored.
    """
    if out is None:
        return item.path.with_name(name)
    if alone and not item.in_folder and not out.endswith("/") and not os.path.isdir(out):
        return Path(out)
    return Path(out) / item.below.with_name(name)


def refuse_itself(source: Path, target: Path) -> None:
    """Raises OutputIsInput if an output named `target` would take the place of the file `source` leads to."""
    there = os.path.join(os.path.realpath(target.parent), target.name)
    if there == os.path.realpath(source):
        raise OutputIsInput(f"{target} is the file itself; name another output")


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A read-only descriptor of a regular file. Raises NotFound for anything else."""
    # Not blocking, because opening a pipe would wait for somebody who writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotFound(f"{path}: not a file")
        yield fd
    finally:
        os.close(fd)


class Batch:
    """Does a step for each of many files, reports each failure and goes on.

    `code` is the exit code of the first failure, or 0.
    """

    def __init__(self) -> None:
        self.code: int = ExitCode.OK
        self.failed = 0

    def step(self, item: Item, work: Callable[[Item], None]) -> None:
        """Runs `work`, tells and remembers a failure of this file; a lack of space ends the batch."""
        try:
            work(item)
        except BrokenPipeError:
            raise
        except (BrevisError, OSError) as error:
            trace(error)
            text = describe(error)
            complain(text if text.startswith(str(item.path)) else f"{item.path}: {text}")
            self.fail(exit_code(error))
            if exit_code(error) == ExitCode.NO_SPACE:
                raise click.exceptions.Exit(self.code) from None

    def lost(self, error: BrevisError | OSError) -> None:
        """Tells and remembers a failure to come to the files at all."""
        trace(error)
        complain(describe(error))
        self.fail(exit_code(error))

    def fail(self, code: int) -> None:
        """Remembers a failure that was told already."""
        self.failed += 1
        self.code = self.code or code
