"""`make demo` and `make corpus-check`, and that their checks can fail."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.mount.conftest import has_fuse

ROOT = Path(__file__).resolve().parents[2]

needs_fuse = pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    names = ("mounted", "demo", "corpus_check")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    path = tmp_path / "models/m.safetensors"
    path.parent.mkdir()
    tensors = {
        "weight": chance.normal(0, 0.02, (300, 700)).astype(np.float32),
        "scale": np.float32(0.5),
        "ids": np.arange(512, dtype=np.int64),
        "none": np.zeros((0, 4), np.float32),
    }
    save_file({name: np.asarray(tensor) for name, tensor in tensors.items()}, path)
    return path


def mounts_under(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


@needs_fuse
@pytest.mark.timeout(1800)
def test_make_demo() -> None:
    """The real one, with the real model."""
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    # make itself answers 2 and writes what the script answered.
    if f"Error {os.EX_TEMPFAIL}" in done.stderr and not os.environ.get("CI"):
        pytest.skip("the model could not be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal, every byte" in done.stdout
    assert "minilm-bf16" in done.stdout


def test_rounding_to_bf16(scripts: dict[str, ModuleType]) -> None:
    words = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000000], np.uint32)
    expected = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x8000]
    assert scripts["demo"].to_bf16(words).tolist() == expected


def test_the_bf16_form_is_a_model(scripts: dict[str, ModuleType], model: Path, tmp_path: Path) -> None:
    load_file = scripts["demo"].safetensors.numpy.load_file
    form = load_file(scripts["demo"].cast(model, tmp_path / "bf16"))
    original = load_file(model)
    assert form.keys() == original.keys()
    assert {str(form[name].dtype) for name in ("weight", "scale", "none")} == {"bfloat16"}
    assert np.array_equal(form["ids"], original["ids"])
    assert np.allclose(form["weight"].astype(np.float32), original["weight"], rtol=2**-8, atol=0)


@needs_fuse
def test_the_demo_of_a_small_model(scripts: dict[str, ModuleType], model: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (row,) = scripts["demo"].show([model], work, "fast")
    assert row.equal
    assert row.raw == model.stat().st_size
    assert 0 < row.stored < row.raw
    assert model.name in scripts["demo"].table([row])
    assert not mounts_under(tmp_path)


@needs_fuse
def test_a_failure_leaves_no_mount(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    store, mountpoint = tmp_path / "store", tmp_path / "mnt"
    store.mkdir()
    mountpoint.mkdir()
    with pytest.raises(RuntimeError), scripts["mounted"].mounted(store, mountpoint):
        assert mounts_under(tmp_path)
        raise RuntimeError
    assert not mounts_under(tmp_path)


@needs_fuse
def test_the_corpus_check_of_a_folder(model: Path, tmp_path: Path) -> None:
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps({model.name: {"peer_bytes": model.stat().st_size}}))
    command = [sys.executable, str(ROOT / "scripts/corpus_check.py"), str(model.parent)]
    done = subprocess.run(
        [*command, "--targets", str(targets), "--profile", "fast", "--work", str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("yes")
    assert not mounts_under(tmp_path)


def test_the_corpus_check_sees_a_difference(
    scripts: dict[str, ModuleType], model: Path, tmp_path: Path
) -> None:
    check = scripts["corpus_check"].check
    seen = tmp_path / "seen"
    shutil.copy(model, seen)
    assert check(model, seen) == []
    data = bytearray(seen.read_bytes())
    data[-1] ^= 1
    seen.write_bytes(data)
    assert {"same_sha256", "same_tensors", "same_loaded"} <= set(check(model, seen))
    seen.write_bytes(data[:-1])
    assert "same_size" in check(model, seen)


def test_the_corpus_check_of_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/corpus_check.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no .safetensors file" in done.stderr
