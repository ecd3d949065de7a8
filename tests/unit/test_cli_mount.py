"""brevisfs mount and umount from arguments to the filesystem's functions, without a mount."""

from pathlib import Path

import pytest

from brevisfs import fs
from brevisfs.cli import run
from brevisfs.errors import ExitCode

Calls = list[tuple[Path, Path, fs.MountOptions]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Calls]:
    made: dict[str, Calls] = {"mount_background": [], "mount_foreground": []}
    for name, those in made.items():
        monkeypatch.setattr(fs, name, lambda *arguments, those=those: those.append(arguments))
    return made


def test_mount_returns_by_itself(calls: dict[str, Calls]) -> None:
    assert run(["mount", "store", "models"]) == 0
    assert calls["mount_background"] == [(Path("store"), Path("models"), fs.MountOptions())]
    assert calls["mount_foreground"] == []


def test_options_go_along(calls: dict[str, Calls]) -> None:
    options = ["--foreground", "--cache-size", "2G", "--threads", "3", "--log", "file"]
    assert run(["mount", "store", "models", *options]) == 0
    chosen = fs.MountOptions(cache_size=2 << 30, threads=3, log=Path("file"))
    assert calls["mount_foreground"] == [(Path("store"), Path("models"), chosen)]
    assert calls["mount_background"] == []


def test_recompression_is_chosen_too(calls: dict[str, Calls]) -> None:
    options = ["--settle", "1.5", "--workers", "2", "--profile", "dense", "--quiet-hours", "8:00-9:00"]
    assert run(["mount", "store", "models", "--read-only", "--no-recompress", *options]) == 0
    recompression = fs.RecompressionOptions(
        enabled=False, settle=1.5, workers=2, profile="dense", quiet_hours="8:00-9:00"
    )
    chosen = fs.MountOptions(read_only=True, recompression=recompression)
    assert calls["mount_background"] == [(Path("store"), Path("models"), chosen)]


def test_hours_that_are_none(calls: dict[str, Calls], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mount", "store", "models", "--quiet-hours", "at night"]) == ExitCode.USAGE
    assert "no hours" in capsys.readouterr().err
    assert calls["mount_background"] == []


def test_profiles_are_those_of_pack() -> None:
    from brevisfs.cli.mount import _PROFILES
    from brevisfs.synth import Profile

    assert set(_PROFILES) == {profile.value for profile in Profile}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("268435456", 1 << 28),
        ("300000k", 300_000 << 10),
        ("512M", 512 << 20),
        ("2GiB", 2 << 30),
        ("1 tb", 1 << 40),
    ],
)
def test_sizes(calls: dict[str, Calls], text: str, count: int) -> None:
    assert run(["mount", "s", "m", "--cache-size", text]) == 0
    assert calls["mount_background"][0][2].cache_size == count


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5G", "1", "2X", "M"])
def test_no_sizes(calls: dict[str, Calls], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mount", "s", "m", "--cache-size", text]) == ExitCode.USAGE
    assert calls["mount_background"] == []
    said = capsys.readouterr().err
    assert said.startswith("brevisfs: ")
    assert said.count("\n") == 1


def test_a_store_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    assert run(["mount", str(tmp_path / "store"), str(tmp_path / "models")]) == ExitCode.NOT_FOUND
    said = capfd.readouterr().err.splitlines()
    assert "no such store" in said[-1]
    assert all(line.startswith("brevisfs: ") for line in said)


def test_nothing_to_unmount(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["umount", str(tmp_path)]) == ExitCode.MOUNTPOINT
    assert "nothing is mounted" in capsys.readouterr().err


def test_umount_can_be_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, bool]] = []
    monkeypatch.setattr(fs, "umount", lambda *arguments: calls.append(arguments))
    assert run(["umount", "models"]) == 0
    assert run(["umount", "models", "--lazy"]) == 0
    assert calls == [(Path("models"), False), (Path("models"), True)]
