"""checkup tells what is in the weights, of a model and of its archive alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from brevisfs.cli import run
from brevisfs.errors import ExitCode

RNG = np.random.default_rng


def weights(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return RNG(seed).normal(0, 0.02, shape).astype(np.float32)


def some_rows_alike() -> np.ndarray[Any, Any]:
    made = weights(40, 30)
    made[3:7] = 0
    made[9] = 2.5
    made[20:23] = made[10]
    return made


def upcast(seed: int = 0) -> np.ndarray[Any, Any]:
    return (weights(64, 32, seed=seed).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def clipped() -> np.ndarray[Any, Any]:
    return np.clip(np.rint(RNG(0).normal(0, 90, (50, 60))), -128, 127).astype(np.int8)


CASES: dict[str, tuple[np.ndarray[Any, Any], dict[str, str]]] = {
    "plain": (weights(64, 32), {}),
    "constant": (np.full((8, 9), 3.0, np.float32), {"constant": "all values are the same"}),
    "rows": (
        some_rows_alike(),
        {
            "dead rows": "5 of 40 rows hold one value only",
            "repeated rows": "3 of 40 rows are equal to an earlier one",
            "sparse": "10.0 % of the values are zero",
        },
    ),
    "upcast": (upcast(), {"precision": "every value would fit in BF16"}),
    "half": (
        weights(64, 32).astype(np.float16).astype(np.float32),
        {"precision": "every value would fit in F16"},
    ),
    "single": (weights(64, 32).astype(np.float64), {"precision": "every value would fit in F32"}),
    "cut": (
        (weights(64, 32).view(np.uint32) & np.uint32(0xFFFFFF80)).view(np.float32),
        {"precision": "the low 7 mantissa bits never change"},
    ),
    "ids": (np.arange(-3, 200, dtype=np.int64), {"precision": "every value would fit in I16"}),
    "levels": (
        (np.float32(0.1) * RNG(0).integers(-8, 8, (100, 100))).astype(np.float32),
        {"few values": "16 different values", "sparse": None},  # type: ignore[dict-item]
    ),
    "clipped": (clipped(), {"saturated": None}),  # type: ignore[dict-item]
    "broken": (
        np.concatenate(
            (weights(500), np.array([np.inf, -np.inf, np.nan, 3.4028234663852886e38], np.float32))
        ),
        {"not finite": "3 infinities or NaNs", "saturated": "1 values at the end of what F32 holds"},
    ),
    "empty": (np.zeros((0, 4), np.float32), {}),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({name: array for name, (array, _) in CASES.items()} | {"tied": CASES["plain"][0]}, path)
    return path


def told(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    assert run(["checkup", str(path), "--json"]) == 0
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)[0]["findings"]
    return findings


def test_each_tensor_shows_what_is_in_it_and_nothing_else(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = told(capsys, model)
    for name, (_, expected) in CASES.items():
        found = {one["kind"]: one["text"] for one in findings if one["tensors"] == [name]}
        assert found.keys() == expected.keys(), name
        assert all(text in (None, found[kind]) for kind, text in expected.items()), name
    ends = int(np.count_nonzero(np.isin(clipped(), (-128, 127))))
    assert f"{ends} values at the end of what I8 holds" in {one["text"] for one in findings}
    assert [one["tensors"] for one in findings if one["kind"] == "tied"] == [["plain", "tied"]]


def test_an_archive_shows_the_same(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pack", str(model)]) == 0
    capsys.readouterr()
    assert told(capsys, Path(f"{model}.brv")) == told(capsys, model)


def test_what_many_tensors_have_in_common_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({f"layer.{seed}": upcast(seed) for seed in range(9)}, tmp_path / "m")
    assert run(["checkup", str(tmp_path / "m")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert out[1] == "  layer.0 and 8 others  every value would fit in BF16"


def test_a_model_without_anything_remarkable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": weights(30, 20)}, tmp_path / "m")
    assert run(["checkup", str(tmp_path / "m")]) == 0
    assert "nothing remarkable" in capsys.readouterr().out


def test_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("no model")
    assert run(["checkup", str(tmp_path / "text")]) == ExitCode.NOT_SAFETENSORS
    assert run(["checkup", str(tmp_path / "none")]) == ExitCode.NOT_FOUND
