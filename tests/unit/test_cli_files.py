"""Which files a command line names, where outputs go, and which folders are mounts."""

import os
from pathlib import Path

import click
import pytest

from brevisfs.cli._files import Batch, Item, NotFound, find, output_path
from brevisfs.cli._mounts import InsideMount, refuse_mount
from brevisfs.errors import ExitCode


def test_files_and_folders_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "sub/c", ".brevisfs/hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    items = list(find([tmp_path / "b", tmp_path]))
    assert [(item.below.as_posix(), item.in_folder) for item in items] == [
        ("b", False),
        ("a", True),
        ("b", True),
        ("sub/c", True),
    ]


def test_what_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFound, match="no such file"):
        list(find([tmp_path / "none"]))
    with pytest.raises(NotFound, match="neither"):
        list(find([tmp_path / "pipe"]))


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
