"""The command line: one module a command, thin; this one finds the command and reports how it ended."""

from brevisfs.cli._main import cli, main, run

__all__ = ["cli", "main", "run"]
