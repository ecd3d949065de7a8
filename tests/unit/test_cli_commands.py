"""Commands from their arguments to output, exit code and files; in this process, on small models."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from brevisfs import _native, archive, synth
from brevisfs.cli import run
from brevisfs.errors import ExitCode

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def brevisfs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line; exit code, stdout and stderr."""
    monkeypatch.delenv("BREVISFS_DEBUG", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    write_model(path)
    return path


def write_model(path: Path, seed: int = 0) -> None:
    chance = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "a.weight": chance.normal(0, 0.02, (128, 130)).astype(np.float32),
        "b.weight": np.zeros((70, 100), np.float16),
        "c.bias": chance.normal(0, 1, 5).astype(np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }
    save_file(tensors, path, {"made": "for a test"})


def one_line(text: str) -> bool:
    return text.startswith("brevisfs: ") and text.count("\n") == 1 and text.endswith("\n")


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_pack_and_unpack_give_the_file_back(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    os.utime(model, ns=(10**18, 10**18 + 7))
    model.chmod(0o640)
    code, out, err = brevisfs("pack", model)
    packed = tmp_path / "m.safetensors.brv"
    assert (code, err) == (0, "")
    assert f"{packed}: " in out
    assert "saved" in out
    assert packed.stat().st_size < model.stat().st_size
    assert (packed.stat().st_mtime_ns, packed.stat().st_mode) == (10**18 + 7, model.stat().st_mode)
    code, out, err = brevisfs("unpack", packed, "-o", tmp_path / "again")
    assert (code, err) == (0, "")
    assert (tmp_path / "again").read_bytes() == model.read_bytes()
    assert (tmp_path / "again").stat().st_mtime_ns == 10**18 + 7
    assert sorted(os.listdir(tmp_path)) == ["again", "m.safetensors", "m.safetensors.brv"]


def test_same_input_same_archive(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    for out, jobs in (("1", 1), ("2", 4)):
        assert brevisfs("pack", model, "-o", tmp_path / out, "--jobs", jobs)[0] == 0
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("profile", ["fast", "balanced", "dense"])
def test_every_profile_packs(brevisfs: Run, model: Path, profile: str) -> None:
    assert brevisfs("pack", model, "--profile", profile)[0] == 0
    assert brevisfs("verify", f"{model}.brv")[0] == 0


def test_pack_json(brevisfs: Run, model: Path) -> None:
    code, out, err = brevisfs("pack", model, "--json")
    (packed,) = json.loads(out)["packed"]
    assert (code, err) == (0, "")
    assert packed["source"] == str(model)
    assert packed["archive"] == f"{model}.brv"
    assert packed["original"] == model.stat().st_size
    assert packed["stored"] == Path(f"{model}.brv").stat().st_size


def test_pack_keeps_what_is_there(brevisfs: Run, model: Path) -> None:
    there = Path(f"{model}.brv")
    there.write_bytes(b"precious")
    code, _, err = brevisfs("pack", model)
    assert code == ExitCode.EXISTS
    assert one_line(err)
    assert there.read_bytes() == b"precious"
    assert brevisfs("pack", model, "--force")[0] == 0
    assert brevisfs("verify", there)[0] == 0


def test_pack_refuses_what_is_no_model(brevisfs: Run, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    code, _, err = brevisfs("pack", text)
    assert code == ExitCode.NOT_SAFETENSORS
    assert one_line(err)
    assert "not a safetensors file" in err
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_pack_refuses_an_archive(brevisfs: Run, model: Path) -> None:
    brevisfs("pack", model)
    code, _, err = brevisfs("pack", f"{model}.brv")
    assert code == ExitCode.NOT_SAFETENSORS
    assert "archive already" in err


def test_pack_of_a_folder(brevisfs: Run, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models / "one.safetensors")
    write_model(models / "sub/two", seed=1)
    (models / "config.json").write_text("{}")
    code, out, err = brevisfs("pack", models, "-o", tmp_path / "store", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert len(result["packed"]) == 2
    assert result["skipped"] == {"not safetensors": 1}
    assert sorted(
        p.relative_to(tmp_path / "store").as_posix() for p in (tmp_path / "store").rglob("*.brv")
    ) == [
        "one.safetensors.brv",
        "sub/two.brv",
    ]


def test_pack_of_a_folder_again_does_what_is_new(brevisfs: Run, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models / "one")
    assert brevisfs("pack", models)[0] == 0
    write_model(models / "two", seed=1)
    code, out, _ = brevisfs("pack", models, "--json")
    assert code == 0
    assert [Path(item["source"]).name for item in json.loads(out)["packed"]] == ["two"]
    assert json.loads(out)["skipped"] == {"archive": 1, "packed already": 1}
    write_model(models / "one", seed=2)
    os.utime(models / "one", ns=(5, 5))
    code, _, err = brevisfs("pack", models)
    assert code == ExitCode.EXISTS
    assert "another state" in err


def test_pack_of_several_files_goes_on(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"bad")
    code, out, err = brevisfs("pack", tmp_path / "bad", model, "-o", tmp_path / "store")
    assert code == ExitCode.NOT_SAFETENSORS
    assert one_line(err)
    assert "1 packed" in out
    assert "1 failed" in out
    assert (tmp_path / "store/m.safetensors.brv").exists()


def test_what_is_not_there_ends_nothing(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = brevisfs("pack", tmp_path / "none", model, "--json")
    assert code == ExitCode.NOT_FOUND
    assert one_line(err)
    result = json.loads(out)
    assert ([item["source"] for item in result["packed"]], result["failed"]) == ([str(model)], 1)


@pytest.mark.parametrize("command", ["pack", "unpack", "verify", "info", "explain", "umount"])
def test_an_empty_name_is_not_this_folder(brevisfs: Run, command: str) -> None:
    code, _, err = brevisfs(command, "")
    assert code == ExitCode.USAGE
    assert one_line(err)


def test_the_source_stays_whatever_the_output_is_called(brevisfs: Run, model: Path) -> None:
    before = model.read_bytes()
    code, _, err = brevisfs("pack", "--force", model, "-o", model)
    assert code == ExitCode.USAGE
    assert one_line(err)
    assert model.read_bytes() == before


def test_any_name_can_be_told(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff\n\x1b[31m")
    model.rename(odd)
    code, out, err = brevisfs("pack", odd)
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path}/\\udcff\\n\\x1b[31m.brv: ")
    code, _, err = brevisfs("pack", odd)
    assert code == ExitCode.EXISTS
    assert one_line(err)


def test_pack_never_lets_two_sources_share_an_archive(brevisfs: Run, tmp_path: Path) -> None:
    for seed, name in enumerate(("a/m", "b/m")):
        write_model(tmp_path / name, seed)
    code, out, _ = brevisfs("pack", tmp_path / "a/m", tmp_path / "b/m", "-o", tmp_path / "store", "--force")
    assert code == ExitCode.EXISTS
    assert "1 packed" in out


def test_pack_notices_a_source_that_changes(
    brevisfs: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = synth.pack

    def pack(source: int, out: int, **options: Any) -> synth.PackReport:
        report = real(source, out, **options)
        flip(model, model.stat().st_size - 1)
        os.utime(model, ns=(1, 1))
        return report

    monkeypatch.setattr(synth, "pack", pack)
    code, _, err = brevisfs("pack", model)
    assert code == ExitCode.FAILED
    assert "while it was packed" in err
    assert not Path(f"{model}.brv").exists()


def test_pack_never_keeps_an_archive_that_differs(
    brevisfs: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    write_model(other, seed=3)
    real = synth.pack

    def pack(source: int, out: int, **options: Any) -> synth.PackReport:
        with other.open("rb") as file:
            return real(file.fileno(), out, **options)

    monkeypatch.setattr(synth, "pack", pack)
    code, _, err = brevisfs("pack", model)
    assert code == ExitCode.MISMATCH
    assert one_line(err)
    assert not Path(f"{model}.brv").exists()


def test_verify_names_what_is_lost(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    brevisfs("pack", model)
    packed = Path(f"{model}.brv")
    code, out, err = brevisfs("verify", packed)
    assert (code, err) == (0, "")
    assert "whole" in out
    with packed.open("rb") as file:
        reader = archive.Reader(file.fileno())
        section = next(s for s in reader.sections if s.kind == archive.Kind.TENSOR and s.dtype == "F32")
        start = section.record + section.prologue + 4
    flip(packed, start + 1000)
    code, out, err = brevisfs("verify", tmp_path, "--json")
    assert code == ExitCode.DAMAGED
    (result,) = json.loads(out)["archives"]
    assert "a.weight" in result["faults"][0]
    assert "a.weight" in err
    code, _, err = brevisfs("unpack", packed, "-o", tmp_path / "out")
    assert code == ExitCode.DAMAGED
    assert one_line(err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["verify", "unpack", "info", "explain"])
def test_what_is_no_archive(brevisfs: Run, tmp_path: Path, command: str) -> None:
    text = tmp_path / "notes.brv"
    text.write_text("no archive")
    code, _, err = brevisfs(command, text)
    assert code == ExitCode.NOT_ARCHIVE
    assert one_line(err)
    assert "notes.brv" in err


@pytest.mark.parametrize("command", ["verify", "unpack", "info", "explain", "pack"])
def test_what_is_not_there(brevisfs: Run, tmp_path: Path, command: str) -> None:
    code, _, err = brevisfs(command, tmp_path / "none")
    assert code == ExitCode.NOT_FOUND
    assert one_line(err)


@pytest.mark.parametrize("command", ["verify", "unpack", "info", "explain"])
def test_a_truncated_archive(brevisfs: Run, model: Path, command: str) -> None:
    brevisfs("pack", model)
    packed = Path(f"{model}.brv")
    os.truncate(packed, packed.stat().st_size // 2)
    model.unlink()
    code, _, err = brevisfs(command, packed)
    assert code == ExitCode.DAMAGED
    assert one_line(err)
    assert not model.exists()


def test_unpack_needs_a_name(brevisfs: Run, model: Path, tmp_path: Path) -> None:
    brevisfs("pack", model, "-o", tmp_path / "blob")
    code, _, err = brevisfs("unpack", tmp_path / "blob")
    assert code == ExitCode.USAGE
    assert "-o" in err


def test_unpack_of_a_folder(brevisfs: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "models/a/m")
    brevisfs("pack", tmp_path / "models", "-o", tmp_path / "store")
    (tmp_path / "store/readme").write_text("passed over")
    code, out, _ = brevisfs("unpack", tmp_path / "store", "-o", tmp_path / "plain", "--json")
    assert code == 0
    assert len(json.loads(out)["unpacked"]) == 1
    assert (tmp_path / "plain/a/m").read_bytes() == (tmp_path / "models/a/m").read_bytes()


def test_info_adds_up(brevisfs: Run, model: Path) -> None:
    brevisfs("pack", model)
    packed = Path(f"{model}.brv")
    code, out, err = brevisfs("info", packed, "--json")
    (info,) = json.loads(out)["archives"]
    assert (code, err) == (0, "")
    assert info["original"] == model.stat().st_size == sum(d["original"] for d in info["dtypes"].values())
    assert info["stored"] == packed.stat().st_size == sum(d["stored"] for d in info["dtypes"].values())
    code, out, _ = brevisfs("info", packed)
    assert code == 0
    assert "F32" in out
    assert info["sha256"] in out


def test_info_of_several(brevisfs: Run, tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_model(tmp_path / name, seed)
    brevisfs("pack", tmp_path)
    code, out, _ = brevisfs("info", tmp_path)
    assert code == 0
    assert "all" in out
    assert str(tmp_path / "b.brv") in out


def test_explain_adds_up(brevisfs: Run, model: Path) -> None:
    brevisfs("pack", model)
    code, out, err = brevisfs("explain", f"{model}.brv", "--json")
    sections = json.loads(out)["sections"]
    assert (code, err) == (0, "")
    assert sum(one["original"] for one in sections) == model.stat().st_size
    named = [name for one in sections for name in one["tensors"]]
    assert sorted(named) == ["a.weight", "b.weight", "c.bias"]
    ends = [one["record"] + one["stored"] for one in sections]
    assert [one["record"] for one in sections[1:]] == ends[:-1]


def test_explain_of_one_tensor(brevisfs: Run, model: Path) -> None:
    brevisfs("pack", model)
    code, out, _ = brevisfs("explain", f"{model}.brv", "b.weight")
    assert code == 0
    assert out.startswith("b.weight  F16 [70, 100]\n")
    assert "Const 0" in out
    assert "a.weight" not in out
    code, out, _ = brevisfs("explain", f"{model}.brv", "[ab].*")
    assert "a.weight" in out
    assert "b.weight" in out
    code, out, err = brevisfs("explain", f"{model}.brv", "nothing")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert one_line(err)
    code, out, err = brevisfs("explain", f"{model}.brv", "empty")
    assert code == 0
    assert "takes no bytes" in err


def test_explain_of_a_damaged_program(brevisfs: Run, model: Path) -> None:
    brevisfs("pack", model)
    packed = Path(f"{model}.brv")
    with packed.open("rb") as file:
        sections = archive.Reader(file.fileno()).sections
        section = next(s for s in sections if s.dtype == "F16")
    flip(packed, section.record + section.prologue - 1)
    code, out, _ = brevisfs("explain", packed, "*.weight")
    assert code == ExitCode.DAMAGED
    assert "unreadable" in out
    assert "a.weight" in out


def test_usage_errors_are_one_line(brevisfs: Run, model: Path) -> None:
    for arguments in (["bogus"], ["pack", model, "--profile", "best"], ["info", "--nonsense"], ["verify"]):
        code, out, err = brevisfs(*arguments)
        assert (code, out) == (ExitCode.USAGE, "")
        assert one_line(err), err


def test_help_names_every_command(brevisfs: Run) -> None:
    code, out, _ = brevisfs("--help")
    assert code == 0
    for name in ("pack", "unpack", "verify", "info", "explain", "mount", "umount"):
        assert f"  {name} " in out
        assert brevisfs(name, "--help")[0] == 0


def test_a_bug_is_one_line_and_debug_shows_where(
    brevisfs: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(*_: Any, **__: Any) -> None:
        raise AssertionError("surprise")

    monkeypatch.setattr(synth, "pack", pack)
    code, _, err = brevisfs("pack", model)
    assert code == ExitCode.FAILED
    assert one_line(err)
    code, _, err = brevisfs("--debug", "pack", model)
    assert "Traceback" in err
    code, _, err = brevisfs("--debug", "info", model)
    assert code == ExitCode.NOT_ARCHIVE
    assert "Traceback" in err


def test_interrupted(brevisfs: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(source: int, out: int, **_: Any) -> None:
        os.write(out, b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(synth, "pack", pack)
    code, _, err = brevisfs("pack", model)
    assert code == 130
    assert "interrupted" in err
    assert os.listdir(model.parent) == [model.name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_while_packing_leaves_nothing(model: Path, number: signal.Signals) -> None:
    # All is written and only the name is missing: the latest moment at which nothing may stay.
    code = (
        "import signal, sys\n"
        "from brevisfs import cli, synth\n"
        "real = synth.pack\n"
        "def pack(*files, **options):\n"
        "    real(*files, **options)\n"
        "    print('packed', flush=True)\n"
        "    signal.pause()\n"
        "synth.pack = pack\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, "pack", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"packed\n"
        process.send_signal(number)
        said = process.stderr.read()
        ended = process.wait()
    assert ended == (-number if number == signal.SIGKILL else 128 + number)
    assert b"Traceback" not in said
    assert os.listdir(model.parent) == [model.name]


def test_reading_never_loads_the_search(model: Path, brevisfs: Run) -> None:
    brevisfs("pack", model)
    code = (
        "import sys\nfrom brevisfs.cli import run\n"
        f"assert run(['verify', {str(model) + '.brv'!r}]) == 0\n"
        "assert run(['mount', '--help']) == 0\n"
        "assert not [name for name in sys.modules if name.startswith('brevisfs.synth')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_output_that_nobody_reads(model: Path, brevisfs: Run) -> None:
    brevisfs("pack", model)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "brevisfs", "explain", f"{model}.brv"]
    with open(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("command", ["verify", "unpack", "info", "explain"])
def test_an_archive_of_another_version(brevisfs: Run, model: Path, command: str) -> None:
    brevisfs("pack", model)
    packed = Path(f"{model}.brv")
    data = bytearray(packed.read_bytes())
    data[8] += 1
    data[40:48] = _native.checksum(bytes(data[:40])).to_bytes(8, "little")
    packed.write_bytes(data)
    model.unlink()
    code, _, err = brevisfs(command, packed)
    assert code == ExitCode.UNSUPPORTED
    assert one_line(err)
    assert "version 2" in err
    assert not model.exists()


def test_a_full_disk(brevisfs: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(synth, "pack", pack)
    code, _, err = brevisfs("pack", model)
    assert code == ExitCode.NO_SPACE
    assert one_line(err)
    assert os.listdir(model.parent) == [model.name]
