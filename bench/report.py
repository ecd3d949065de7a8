"""Tables for people (rich on a terminal, plain lines elsewhere) and the same figures as JSON."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from bench.measure import Spread
from brevisfs import _native

Figure: TypeAlias = Spread | float | int | str | None


SPREAD = 21
"""Width of a column of spreads."""


class Report:
    """Takes rows one by one. Plain lines appear at once, a terminal's table when it ends."""

    def __init__(self) -> None:
        self.parts: dict[str, list[dict[str, Figure]]] = {}
        self._console = Console()
        self._table: Table | None = None
        self._columns: list[str] = []
        self._rows: list[dict[str, Figure]] = []
        self._widths: list[int] = []

    def say(self, line: str) -> None:
        """A line of text."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, part: str, title: str, columns: dict[str, int]) -> None:
        """A table with columns and their widths; rows are dicts with (some of) the same keys."""
        self.end()
        self._columns, self._widths = list(columns), list(columns.values())
        self.parts[part] = self._rows = []
        self.say(f"\n{title}")
        if self._console.is_terminal:
            self._table = Table()
            for name, width in columns.items():
                # A spread may break between the median and its brackets, all else is kept in one piece.
                self._table.add_column(name, no_wrap=width < SPREAD, overflow="fold")
        else:
            self.say(self._line(self._columns))

    def row(self, row: dict[str, Figure]) -> None:
        """Adds a row; keys that are no columns go to the JSON only."""
        self._rows.append(row)
        cells = [shown(row.get(name)) for name in self._columns]
        if self._table is not None:
            self._table.add_row(*cells)
        else:
            self.say(self._line(cells))

    def end(self) -> None:
        """Shows what is still to be shown."""
        if self._table is not None:
            self._console.print(self._table)
            self._table = None

    def write(self, path: Path, settings: dict[str, Figure]) -> None:
        """All rows and the machine as JSON; a spread is an object of median, low and high."""
        parts = {
            part: [{name: _plain(figure) for name, figure in row.items()} for row in rows]
            for part, rows in self.parts.items()
        }
        text = json.dumps({"machine": machine(), "settings": settings, **parts}, indent=1)
        path.write_text(text + "\n")

    def _line(self, cells: list[str]) -> str:
        return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def shown(figure: Figure) -> str:
    """A figure as text: a spread as its median, with the least and the greatest in brackets."""
    match figure:
        case None:
            return "-"
        case Spread(median, low, high):
            return f"{_short(median)} ({_short(low)}..{_short(high)})"
        case float():
            return f"{figure:.3f}"
    return str(figure)


def _short(number: float) -> str:
    return f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"


def _plain(figure: Figure) -> object:
    return asdict(figure) if isinstance(figure, Spread) else figure


def machine() -> dict[str, str | int | float]:
    """What the figures were measured on."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernels": _native.cpu(),
        "python": sys.version.split()[0],
        "load": os.getloadavg()[0],
    }
