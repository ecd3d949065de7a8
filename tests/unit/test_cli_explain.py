"""explain: every stored byte has its node, and what the search says of a section is what it finds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from brevisfs.cli import run
from brevisfs.errors import ExitCode
from brevisfs.synth import Memory, Profile, synthesize

RNG = np.random.default_rng
WALK = np.cumsum(RNG(0).integers(0, 9, 70_000)).astype(np.int32)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    model = tmp_path / "m.safetensors"
    weights = RNG(0).normal(0, 0.02, (300, 400)).astype(np.float32)
    weights[40:200] = 0
    rows = np.tile(RNG(1).normal(0, 1, 384).astype(np.float32), (64, 1))
    save_file(
        {
            "weights": weights,
            "rows": rows,
            "walk": WALK,
            "walk.again": WALK,
            "levels": (np.float32(0.1) * RNG(3).binomial(40, 0.5, 9_000)).astype(np.float32),
            "noise": RNG(2).integers(0, 256, 9_000, np.uint8),
        },
        model,
    )
    assert run(["pack", str(model)]) == 0
    return Path(f"{model}.brv")


def explained(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["explain", *map(str, arguments), "--json"]) == 0
    sections: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["sections"]
    return sections


def test_the_bytes_of_nodes_are_all_there_are(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in explained(capsys, packed):
        stored = sum(node["stored"] for node in one["nodes"])
        assert stored == one["shared_bytes"] + sum(one["block_bytes"])
        assert one["nodes"][0]["depth"] == 0
        assert one["nodes"][0]["node"].split()[0] in one["program"]


def test_a_palette_is_told_by_its_ends(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = explained(capsys, packed, "levels")
    assert one["program"].count("0x") >= 20
    assert run(["explain", str(packed), "levels"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"  program   Palette\(\w+, \w+, …, \w+: Lit ", out)
    assert re.search(r"\n            Palette of \d+\n", out)


def test_a_reference_is_told(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = explained(capsys, packed, "walk")
    (again,) = explained(capsys, packed, "walk.again")
    assert re.fullmatch(r"section \d xor Const 0", again["program"])
    assert sum(again["block_bytes"]) == 0
    assert again["searched"]["found"] == first["searched"]["found"]


def test_a_tree_shows_where_the_bytes_are(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["explain", str(packed), "rows"]) == 0
    assert re.search(r"\n {12}Repeat 64: \d+ bytes \(\d+\.\d %\)\n {14}Map rotr 1\n", capsys.readouterr().out)
    assert run(["explain", str(packed), "weights"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n {14,}\d+: Lit raw: \d+ bytes \(\d+\.\d %\)\n", out)
    assert "runner-up" in out
    assert "states expanded" in out


def test_the_runner_up_is_the_searchs(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for profile in Profile:
        (one,) = explained(capsys, packed, "walk", "--profile", profile.value)
        plan = synthesize(Memory(WALK.tobytes()), "I32", WALK.shape, profile)
        searched = one["searched"]
        assert searched["found"] == {"program": plan.candidates[0].text, "size": plan.candidates[0].size}
        assert searched["runner_up"] == {"program": plan.candidates[1].text, "size": plan.candidates[1].size}
        assert searched["expanded"] == plan.effort.expanded > 0
        assert searched["programs"] == plan.effort.told > searched["expanded"]
    assert one["searched"]["found"]["program"].startswith("Scan(add")


def test_without_a_search_there_is_no_runner_up(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(one["searched"] is None for one in explained(capsys, packed, "--no-search"))


def test_a_damaged_block_is_told(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = explained(capsys, packed, "noise")
    data = bytearray(packed.read_bytes())
    data[one["record"] + one["stored"] - 1] ^= 1
    packed.write_bytes(data)
    capsys.readouterr()
    assert run(["explain", str(packed), "noise"]) == ExitCode.DAMAGED
    out = capsys.readouterr().out
    assert "  program   Lit raw" in out
    assert "  unreadable: " in out
