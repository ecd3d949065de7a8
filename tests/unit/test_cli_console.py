"""What commands print."""

import errno
import io
import sys

import pytest

from brevisfs.cli._console import columns, describe, exit_code, percent, progress, size
from brevisfs.errors import BrevisError, ExitCode


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (90_868_376, "86.7 MiB"),
        (2**30 - 1, "1024.0 MiB"),
        (2**30, "1.0 GiB"),
        (5 * 2**60, "5.0 EiB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


def test_percent() -> None:
    assert percent(2, 3) == "66.7 %"
    assert percent(0, 0) == "–"


def test_columns_align() -> None:
    assert list(columns([("a", "1"), ("bcd", "22")], "lr")) == ["a     1", "bcd  22"]


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("x") as bar:
        assert bar is None


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("model") as bar:
        assert bar
        bar(5, 10)
    assert "model" in terminal.getvalue()


def test_errors_are_one_line_and_a_code() -> None:
    class Two(BrevisError):
        exit_code = ExitCode.DAMAGED

    assert describe(Two("one\n  line")) == "one line"
    assert exit_code(Two()) == 5
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "x")
    assert describe(missing) == "x: No such file or directory"
    assert exit_code(missing) == ExitCode.NOT_FOUND
    assert exit_code(OSError(errno.ENOSPC, "full")) == ExitCode.NO_SPACE
    assert exit_code(OSError(errno.EIO, "bad")) == ExitCode.FAILED
    assert "KeyError" in describe(KeyError("x"))
    assert exit_code(KeyError("x")) == ExitCode.FAILED
