"""The ablation in its short form: every search and budget has a row, and the rows agree where they must."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench import synthesis
from brevisfs.synth import Memory, Profile, synthesize


def test_every_search_has_its_row(tmp_path: Path) -> None:
    steps = np.random.default_rng(0).integers(-3, 4, 6_000)
    walk = np.cumsum(np.cumsum(steps)).astype(np.int32)
    save_file({"walk": walk}, tmp_path / "m")
    out = tmp_path / "out.json"
    assert synthesis.main([str(tmp_path / "m"), "--budgets", "1", "6", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["m"]
    assert [(row["search"], row["budget"]) for row in rows[1:]] == [
        (search.name, budget) for search in synthesis.SEARCHES for budget in ("1", "6")
    ]
    by_budget = {budget: [row["bytes"] for row in rows if row["budget"] == budget] for budget in ("1", "6")}
    assert len(set(by_budget["1"])) == 1
    assert max(by_budget["6"]) <= by_budget["1"][0]
    assert all(row["expanded"] <= 6 * 2 for row in rows[1:])


def test_phases_have_a_row_for_each_file_and_one_for_all(tmp_path: Path) -> None:
    for name, count in (("a", 3_000), ("b", 5_000)):
        save_file({"ramp": np.arange(count, dtype=np.int32)}, tmp_path / name)
    out = tmp_path / "out.json"
    assert synthesis.main([str(tmp_path / "a"), str(tmp_path / "b"), "--phases", "--json", str(out)]) == 0
    *files, both = json.loads(out.read_text())["phases"]
    assert [row["sections"] for row in files] == [2, 2]
    for column in ("sections", "bytes", "search", "fitting", "coding"):
        assert both[column] == pytest.approx(sum(row[column] for row in files))


def test_bytes_are_those_of_the_encoded_section() -> None:
    source = Memory(np.arange(5_000, dtype=np.uint16).tobytes())
    assert synthesis.stored(synthesize(source, "U16", (5_000,), Profile.BALANCED), source) < 100
