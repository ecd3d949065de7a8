"""brevisfs convert and restore: a folder of models becomes a store, and a store a folder."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from brevisfs.cli import run
from brevisfs.errors import ExitCode
from brevisfs.recompress import NoRoom, offline
from brevisfs.store import exclusive
from brevisfs.synth import Profile
from tests.stores import flip, noise
from tests.twins import model, tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models and other files, with metadata."""
    path = tmp_path / "folder"
    (path / "sub").mkdir(parents=True)
    (path / "a.safetensors").write_bytes(model(1))
    (path / "sub/blob").write_bytes(model(2))
    (path / "linked").write_bytes(model(3))
    os.link(path / "linked", path / "sub/link")
    (path / "cut.safetensors").write_bytes(model(4)[:-1])
    (path / "noise.safetensors").write_bytes(save({"x": np.frombuffer(noise(50_000), np.uint8)}))
    (path / "config.json").write_text("{}")
    (path / "symlink").symlink_to("a.safetensors")
    os.chmod(path / "sub/blob", 0o640)
    os.setxattr(path / "sub/blob", "user.note", b"hello")
    os.utime(path / "sub/blob", ns=(10**18, 10**18 + 1))
    return path


def shape(path: Path) -> dict[str, Any]:
    """A tree without what changes in place and what is private."""
    found = {name: seen[:-2] for name, seen in tree(path).items() if not name.startswith(".brevisfs")}
    return {**found, **{name: (path / name).read_bytes() for name in found if (path / name).is_file()}}


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_there_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shape(folder)
    assert run(["convert", str(folder), "--json", "--jobs", "1"]) == 0
    found = result(capsys)
    assert sorted(item["file"] for item in found["converted"]) == ["a.safetensors", "sub/blob"]
    assert sorted(found["kept"]) == ["cut.safetensors", "noise.safetensors"]
    for item in found["converted"]:
        archive = folder / f"{item['file']}.brv"
        assert archive.stat().st_size == item["stored"] < item["original"]
        assert not (folder / item["file"]).exists()
    assert (folder / "sub/blob.brv").stat().st_mode & 0o777 == 0o640
    assert run(["convert", str(folder), "--json"]) == 0
    assert result(capsys)["converted"] == []
    assert run(["restore", str(folder), "--json", "--dry-run"]) == 0
    assert not result(capsys)["done"]
    assert (folder / "sub/blob.brv").exists()
    assert run(["restore", str(folder)]) == 0
    assert "2 restored" in capsys.readouterr().out
    assert shape(folder) == before


def test_a_dry_run_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shape(folder)
    assert run(["convert", str(folder), "--dry-run", "--json"]) == 0
    found = result(capsys)
    assert found["estimated"]
    estimates = {item["file"]: item["stored"] for item in found["converted"]}
    assert shape(folder) == before
    assert ".brevisfs" not in os.listdir(folder)
    assert run(["convert", str(folder), "--json"]) == 0
    for item in result(capsys)["converted"]:
        assert estimates[item["file"]] == pytest.approx(item["stored"], rel=0.2)


def test_an_archive_with_several_names(folder: Path) -> None:
    (folder / "linked").unlink()
    assert run(["convert", str(folder)]) == 0
    os.link(folder / "sub/link.brv", folder / "again.brv")
    assert run(["restore", str(folder)]) == 0
    assert (folder / "again").read_bytes() == (folder / "sub/link").read_bytes() == model(3)
    assert (folder / "again").stat().st_nlink == 2


def test_a_damaged_archive_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(folder)]) == 0
    flip(folder / "a.safetensors.brv", 300)
    damaged = (folder / "a.safetensors.brv").read_bytes()
    capsys.readouterr()
    assert run(["restore", str(folder)]) == ExitCode.DAMAGED
    assert "a.safetensors" in capsys.readouterr().err
    assert (folder / "a.safetensors.brv").read_bytes() == damaged
    assert not (folder / "a.safetensors").exists()
    assert (folder / "sub/blob").read_bytes() == model(2)
    assert os.listdir(folder / ".brevisfs/tmp") == []


def test_a_store_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive(folder):
        for command in (["convert", str(folder)], ["restore", str(folder)]):
            assert run(command) == ExitCode.BUSY
            assert "in use" in (said := capsys.readouterr().err) or "already" in said
        assert run(["pack", str(folder / "a.safetensors")]) == ExitCode.BUSY
        assert "mounted" in capsys.readouterr().err
    assert (folder / "a.safetensors").read_bytes() == model(1)


def test_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.statvfs(folder)
    full = os.statvfs_result((there.f_bsize, there.f_frsize, there.f_blocks, 0, 0, *there[5:]))
    with exclusive(folder) as session:
        found = next(offline.models(session.changes.store))
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(NoRoom):
            offline.convert(session, found, Profile.FAST, 1)
    monkeypatch.undo()
    assert (folder / found.path).read_bytes()


def test_no_such_store(tmp_path: Path) -> None:
    for command in ("convert", "restore"):
        assert run([command, str(tmp_path / "none")]) == ExitCode.NOT_FOUND
        assert run([command, str(tmp_path / "none"), "--dry-run"]) == ExitCode.NOT_FOUND
