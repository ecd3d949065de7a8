"""What commands say: lines on stdout, complaints on stderr, a progress bar where a person watches."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import click

from brevisfs.errors import BrevisError, ExitCode

_ERRNO_CODES = {
    errno.ENOENT: ExitCode.NOT_FOUND,
    errno.EEXIST: ExitCode.EXISTS,
    errno.EBUSY: ExitCode.BUSY,
    errno.ENOSPC: ExitCode.NO_SPACE,
    errno.EDQUOT: ExitCode.NO_SPACE,
}
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")  # of 2^10 each

Progress = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def say(line: str = "") -> None:
    """One line of a command's result."""
    click.echo(printable(line))


def complain(line: str) -> None:
    """One line about what went wrong."""
    click.echo(f"brevisfs: {printable(line)}", err=True)


def printable(line: str) -> str:
    """`line` with what would break it, steer a terminal or not encode, as names may, shown as an escape."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def trace(error: Exception) -> None:
    """The traceback of an error that a command goes on after, if --debug asks for it."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().params.get("debug"):
        traceback.print_exception(error)


def describe(error: Exception) -> str:
    """One line for a person."""
    if isinstance(error, BrevisError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"internal error, {type(error).__name__}: {error} (--debug shows where)"


def exit_code(error: Exception) -> int:
    """The process exit code an error stands for."""
    if isinstance(error, BrevisError):
        return error.exit_code
    if isinstance(error, OSError) and error.errno is not None:
        return _ERRNO_CODES.get(error.errno, ExitCode.FAILED)
    return ExitCode.FAILED


def size(count: int) -> str:
    """A byte count as people read it: 43.3 MiB."""
    if count < 1024:
        return f"{count} B"
    power = (count.bit_length() - 1) // 10
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def percent(part: int, whole: int) -> str:
    """`part` of `whole`, to a tenth of a percent."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def columns(rows: Iterable[Sequence[str]], right: str = "") -> Iterator[str]:
    """Lines with aligned columns; `right` has an r for each column that aligns to the right."""
    table = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    aligns = [">" if mark == "r" else "<" for mark in right.ljust(len(widths))]
    for row in table:
        cells = (f"{cell:{a}{w}}" for cell, a, w in zip(row, aligns, widths, strict=True))
        yield "  ".join(cells).rstrip()


@contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A bar on stderr where that is a terminal, else None: nothing is drawn and nothing counted."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
