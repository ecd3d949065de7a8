"""Which files a command line names, where outputs go, and which folders are mounts."""

import errno
import os
from pathlib import Path
from typing import Any

import click
import pytest

from brevisfs.cli._files import (
    Batch,
    Item,
    NotFound,
    OutputIsInput,
    find,
    opened,
    output_path,
    refuse_itself,
)
from brevisfs.cli._mounts import InsideMount, refuse_mount
from brevisfs.errors import ExitCode


def test_files_and_folders_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "sub/c", ".brevisfs/hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    lost: list[Exception] = []
    items = list(find([tmp_path / "b", tmp_path], lost.append))
    assert not lost
    assert [(item.below.as_posix(), item.in_folder) for item in items] == [
        ("b", False),
        ("a", True),
        ("b", True),
        ("sub/c", True),
    ]


def test_what_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "there").touch()
    lost: list[Exception] = []
    named = [tmp_path / name for name in ("none", "pipe", "loop", "there")]
    assert [item.path for item in find(named, lost.append)] == [tmp_path / "there"]
    assert [type(error) for error in lost] == [NotFound, NotFound, OSError]
    assert ["no such file" in str(lost[0]), "neither" in str(lost[1])] == [True, True]


def test_a_folder_that_cannot_be_read_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed/x", "open/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if os.fspath(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    lost: list[Exception] = []
    assert [item.below.as_posix() for item in find([tmp_path], lost.append)] == ["open/x"]
    assert [type(error) for error in lost] == [PermissionError]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(NotFound, match="not a file"), opened(path):
            pytest.fail("opened")


def test_no_output_in_the_place_of_its_input(tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.touch()
    (tmp_path / "folder").symlink_to(".")
    (tmp_path / "link").symlink_to("m")
    os.link(source, tmp_path / "hard")
    for path, target in ((source, tmp_path / "folder/m"), (tmp_path / "link", source)):
        with pytest.raises(OutputIsInput, match="name another output"):
            refuse_itself(path, target)
    # These names would lead elsewhere, and the source stays.
    refuse_itself(source, tmp_path / "link")
    refuse_itself(source, tmp_path / "hard")


def test_where_outputs_go(tmp_path: Path) -> None:
    named = Item(Path("models/m"), Path("m"), in_folder=False)
    found = Item(Path("models/sub/m"), Path("sub/m"), in_folder=True)
    there, new = tmp_path, tmp_path / "new"
    assert output_path(named, None, True, "m.brv") == Path("models/m.brv")
    assert output_path(found, None, True, "m.brv") == Path("models/sub/m.brv")
    assert output_path(named, str(new), True, "m.brv") == new
    assert output_path(named, f"{new}/", True, "m.brv") == new / "m.brv"
    assert output_path(named, str(there), True, "m.brv") == there / "m.brv"
    assert output_path(named, str(new), False, "m.brv") == new / "m.brv"
    assert output_path(found, str(new), True, "m.brv") == new / "sub/m.brv"


def test_a_batch_goes_on_and_keeps_the_first_code(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def work(item: Item) -> None:
        done.append(item.path.name)
        if item.path.name == "a":
            raise NotFound("gone")
        if item.path.name == "b":
            raise FileExistsError(17, "File exists", "b")

    batch = Batch()
    for name in "abc":
        batch.step(Item(Path(name), Path(name), False), work)
    assert done == ["a", "b", "c"]
    assert (batch.code, batch.failed) == (ExitCode.NOT_FOUND, 2)
    assert capsys.readouterr().err == "brevisfs: a: gone\nbrevisfs: b: File exists\n"


def test_no_space_ends_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    def work(item: Item) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(click.exceptions.Exit) as ended:
        Batch().step(Item(Path("a"), Path("a"), False), work)
    assert ended.value.exit_code == ExitCode.NO_SPACE
    assert capsys.readouterr().err == "brevisfs: a: No space left on device\n"


def test_no_archive_into_a_mount(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    other = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
    table = tmp_path / "mountinfo"
    table.write_text(other + f"40 22 {numbers} / /mnt rw shared:2 - ext4 brevisfs rw\n")
    refuse_mount(tmp_path / "not/there", table)
    table.write_text(other + f"40 22 {numbers} / /mnt rw shared:2 - fuse.brevisfs brevisfs ro\n")
    with pytest.raises(InsideMount, match="inside a BrevisFS mount"):
        refuse_mount(tmp_path / "not/there", table)
