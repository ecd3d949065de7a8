"""From arguments to a command, and from however it ended to one line and an exit code."""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from brevisfs import __version__
from brevisfs.cli._console import complain, describe, exit_code
from brevisfs.errors import ExitCode

# A numerical library starts threads when it is loaded, for products of matrices of which there are none here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_COMMANDS = (
    *("pack", "unpack", "verify", "info", "explain", "checkup", "prior"),
    *("mount", "umount", "status", "convert", "restore"),
)


class _Commands(click.Group):
    """Imports a command's module when it is asked for, so that mounting never loads the search."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"brevisfs.cli.{name}").command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="brevisfs")
@click.option("--debug", is_flag=True, envvar="BREVISFS_DEBUG", help="Show where an error came from.")
def cli(debug: bool) -> None:
    """Keep safetensors models a third smaller, and use them as the plain files they are."""


def main() -> NoReturn:
    """The console script."""
    # As an exception, so that what a command holds is let go and its partial output removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line in this process and returns its exit code; never raises for a failed command."""
    try:
        result = cli.main(args=list(arguments), prog_name="brevisfs", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "brevisfs"
        complain(f"{error.format_message().rstrip('.')} ({where} --help tells more)")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return 128 + signal.SIGINT
    except Exception as error:
        if "--debug" in arguments or os.environ.get("BREVISFS_DEBUG"):
            traceback.print_exc()
        complain(describe(error))
        return exit_code(error)
    return result if isinstance(result, int) else ExitCode.OK
