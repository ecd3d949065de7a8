"""Outputs are whole and under their name, or not there at all."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brevisfs.cli import _output
from brevisfs.cli._output import OutputBusy, OutputExists, copy_metadata, new_file


@pytest.fixture(params=["unnamed", "named"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a filesystem that has O_TMPFILE, and one that has not."""
    if request.param == "named":
        real = os.open

        def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return real(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", open_)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_appears_at_the_end(folder: Path) -> None:
    with new_file(folder / "out", replace=False) as fd:
        os.write(fd, b"content")
        assert "out" not in names(folder)
    assert names(folder) == ["out"]
    assert (folder / "out").read_bytes() == b"content"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(folder: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), new_file(folder / "out", replace=False) as fd:
        os.write(fd, b"half")
        raise failure
    assert names(folder) == []


def test_what_is_there_stays(folder: Path) -> None:
    (folder / "out").write_bytes(b"old")
    with pytest.raises(OutputExists, match="--force"), new_file(folder / "out", replace=False):
        pytest.fail("opened")
    assert (folder / "out").read_bytes() == b"old"


def test_what_appears_meanwhile_stays(folder: Path) -> None:
    with pytest.raises(OutputExists), new_file(folder / "out", replace=False) as fd:
        os.write(fd, b"new")
        (folder / "out").write_bytes(b"old")
    assert names(folder) == ["out"]
    assert (folder / "out").read_bytes() == b"old"


def test_an_error_names_the_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "n" * 256
    with pytest.raises(OSError, match="too long") as caught, new_file(folder / name, replace=True) as fd:
        os.write(fd, b"content")
    assert caught.value.filename == str(folder / name)
    assert names(folder) == []


def test_replaces_when_told(folder: Path) -> None:
    (folder / "out").write_bytes(b"old")
    with new_file(folder / "out", replace=True) as fd:
        os.write(fd, b"new")
        assert (folder / "out").read_bytes() == b"old"
    assert names(folder) == ["out"]
    assert (folder / "out").read_bytes() == b"new"


def test_a_failed_replacement_keeps_the_old(folder: Path) -> None:
    (folder / "out").write_bytes(b"old")
    with pytest.raises(RuntimeError), new_file(folder / "out", replace=True):
        raise RuntimeError
    assert names(folder) == ["out"]
    assert (folder / "out").read_bytes() == b"old"


def test_what_a_dead_process_left_goes_with_the_next_output(folder: Path) -> None:
    (folder / (_output._PARTIAL + "0123")).write_bytes(b"half")
    with new_file(folder / "out", replace=False):
        pass
    assert names(folder) == ["out"]


def test_what_a_live_process_writes_stays(folder: Path) -> None:
    partial = folder / (_output._PARTIAL + "0123")
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with new_file(folder / "out", replace=False):
            pass
    assert names(folder) == [partial.name, "out"]


def test_two_at_once_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # EISDIR, as on an old kernel
    with new_file(tmp_path / "out", replace=False) as fd:
        os.write(fd, b"first")
        with pytest.raises(OutputBusy), new_file(tmp_path / "out", replace=False):
            pytest.fail("opened")
    assert (tmp_path / "out").read_bytes() == b"first"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from brevisfs.cli._output import new_file\n"
        "with new_file(pathlib.Path(sys.argv[1]), replace=False) as fd:\n"
        "    os.write(fd, b'half')\n"
        "    print('writing', flush=True)\n"
        "    signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        assert process.wait() != 0
    assert names(tmp_path) == []


def test_metadata_goes_along(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x")
    target.write_bytes(b"y")
    os.chmod(source, 0o640)
    os.utime(source, ns=(1_000_000_007, 2_000_000_009))
    try:
        os.setxattr(source, "user.note", b"kept")
    except OSError:
        pytest.skip("no extended attributes here")
    with source.open("rb") as left, target.open("rb+") as right:
        copy_metadata(left.fileno(), right.fileno())
    status = target.stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o640, 2_000_000_009)
    assert os.getxattr(target, "user.note") == b"kept"
    assert target.read_bytes() == b"y"
