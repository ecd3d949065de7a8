"""Priors: learnt, kept, merged; they lead the search and leave no trace in what can be found or read."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from brevisfs.cli import run
from brevisfs.errors import ExitCode
from brevisfs.synth import BadPrior, Prior, merged, prior_from_json
from brevisfs.synth._prior import LITERAL, PRODUCTIONS, counted

RNG = np.random.default_rng

SEEN = st.dictionaries(
    st.text(max_size=8), st.dictionaries(st.sampled_from(PRODUCTIONS), st.integers(0, 1000)), max_size=4
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    tensors = {
        f"walk.{seed}": np.cumsum(np.cumsum(RNG(seed).integers(-3, 4, 20_000))).astype(np.int32)
        for seed in range(5)
    }
    save_file(tensors | {"weights": RNG(0).normal(0, 0.02, (200, 100)).astype(np.float32)}, path)
    return path


@given(SEEN)
def test_the_shares_of_a_context_add_up_and_none_is_nothing(counts: dict[str, dict[str, int]]) -> None:
    prior = Prior(counts)
    for context in (*counts, "never seen"):
        shares = [2 ** -prior.cost(production, context) for production in PRODUCTIONS]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0
    assert prior.cost(LITERAL, "never seen") == pytest.approx(log2(len(PRODUCTIONS)))


@given(SEEN)
def test_a_prior_comes_back_from_its_file(counts: dict[str, dict[str, int]]) -> None:
    assert prior_from_json(Prior(counts).to_json()) == Prior(counts)


def test_merged_priors_have_seen_what_each_has() -> None:
    first, second = counted([("a", "cut"), ("a", "cut"), ("b", LITERAL)]), counted([("a", LITERAL)])
    assert merged([first, second]).counts == {"a": {"cut": 2, LITERAL: 1}, "b": {LITERAL: 1}}
    assert merged([]) == Prior()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"brevisfs_prior": 2, "counts": {}}',
        '{"brevisfs_prior": 1}',
        '{"brevisfs_prior": 1, "counts": []}',
        '{"brevisfs_prior": 1, "counts": {"a": 1}}',
        '{"brevisfs_prior": 1, "counts": {"a": {"cut": -1}}}',
        '{"brevisfs_prior": 1, "counts": {"a": {"cut": 1.5}}}',
        '{"brevisfs_prior": 1, "counts": {"a": {"cut": true}}}',
        '{"brevisfs_prior": 1, "counts": {"a": {"unheard of": 1}}}',
        "[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_prior_is_refused(
    text: str | bytes, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadPrior):
        prior_from_json(text)
    path = tmp_path / "prior"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in (["prior", "show", path], ["prior", "merge", path], ["pack", model, "--prior", path]):
        assert run([str(each) for each in command]) == ExitCode.USAGE
        err = capsys.readouterr().err
        assert str(path) in err
        assert "brevisfs prior learn" in err
    assert not Path(f"{model}.brv").exists()


def test_learn_merge_and_show(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior, twice = tmp_path / "prior.json", tmp_path / "twice.json"
    assert run(["prior", "learn", str(model), "-o", str(prior)]) == 0
    assert run(["prior", "learn", str(model)]) == 0
    assert capsys.readouterr().out == prior.read_text()
    assert run(["prior", "learn", str(model), "-o", str(prior)]) == ExitCode.EXISTS
    assert run(["prior", "merge", str(prior), str(prior), "-o", str(twice)]) == 0
    capsys.readouterr()
    assert run(["prior", "show", str(prior), "--json"]) == 0
    once = json.loads(capsys.readouterr().out)["counts"]
    assert any("scan add" in seen for seen in once.values())
    doubled = json.loads(twice.read_text())["counts"]
    assert doubled == {context: {name: 2 * n for name, n in seen.items()} for context, seen in once.items()}
    assert run(["prior", "show", str(prior)]) == 0
    out = capsys.readouterr().out
    assert all(context in out for context in once)


def test_a_model_that_cannot_be_learnt_from_leaves_no_prior(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    out = tmp_path / "prior.json"
    assert run(["prior", "learn", str(model), str(tmp_path / "text"), "-o", str(out)]) != 0
    assert not out.exists()


def packed(model: Path, *options: str) -> bytes:
    out = model.with_suffix(".brv")
    assert run(["pack", str(model), "-o", str(out), "--force", *options]) == 0
    return out.read_bytes()


def test_the_same_arguments_give_the_same_archive(model: Path, tmp_path: Path) -> None:
    prior = tmp_path / "prior.json"
    assert run(["prior", "learn", str(model), "-o", str(prior)]) == 0
    assert packed(model) == packed(model, "--jobs", "1") == packed(model, "--prior", str(prior))
    assert packed(model, "--budget", "5") == packed(model, "--budget", "5", "--jobs", "4")


def test_no_prior_is_in_the_archive_and_none_is_needed_to_read_it(model: Path, tmp_path: Path) -> None:
    prior = tmp_path / "prior.json"
    prior.write_text(counted([("a context of its own", "cut")]).to_json())
    data = packed(model, "--prior", str(prior))
    assert b"a context of its own" not in data
    prior.unlink()
    assert run(["verify", str(model.with_suffix(".brv"))]) == 0


def test_a_larger_budget_packs_no_larger(model: Path) -> None:
    sizes = [len(packed(model, "--budget", budget)) for budget in ("1", "4", "12")]
    assert sizes[1] < 0.9 * sizes[0]
    # What is found is compared as the search prices it, to about a thousandth.
    assert sizes[2] < 1.001 * sizes[1]
