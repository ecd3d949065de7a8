"""What the README promises: every command in it runs, every code in it is right."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from brevisfs.errors import ExitCode
from tests.mount.conftest import has_fuse

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
SET_UP = ["make demo", "make test"]
NEEDS_MOUNT = re.compile(r"\b(mount|umount|models|corpus-check)\b")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model of some size and shape, left without a mount."""
    chance = np.random.default_rng(0)
    weights = {
        f"layer.{layer}.{name}": chance.normal(0, 0.02, (64, width)).astype(np.float32)
        for layer in range(2)
        for name, width in (("attention", 64), ("output", 300))
    }
    save_file(weights, tmp_path / "model.safetensors")
    yield tmp_path
    if os.path.ismount(tmp_path / "models"):
        subprocess.run(["fusermount3", "-u", "-z", str(tmp_path / "models")], check=True)


def test_every_line_of_a_console_block_is_a_command() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert all(line.startswith("$ ") for block in blocks for line in block.splitlines())
    assert COMMANDS[: len(SET_UP)] == SET_UP
    assert len(COMMANDS) > len(SET_UP)


@pytest.mark.parametrize("command", SET_UP)
def test_the_two_commands_are_targets(command: str) -> None:
    # One of them is running this test, the other is run by the mounted tests.
    subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_every_command_runs(sandbox: Path) -> None:
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    for command in COMMANDS[len(SET_UP) :]:
        if NEEDS_MOUNT.search(command) and not has_fuse():
            continue
        folder = sandbox
        if command.startswith("make "):
            folder, command = ROOT, command.replace("DIR=", f"DIR={sandbox}/")
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
    assert (sandbox / "plain/model.safetensors").read_bytes() == (sandbox / "model.safetensors").read_bytes()


def test_every_subcommand_is_shown() -> None:
    from brevisfs.cli._main import _COMMANDS

    shown = {words[1] for command in COMMANDS if (words := shlex.split(command))[0] == "brevisfs"}
    assert shown == set(_COMMANDS)


def test_every_exit_code_is_documented() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert documented == {int(code) for code in ExitCode}


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
