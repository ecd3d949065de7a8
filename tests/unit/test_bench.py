"""The benchmarks' own arithmetic, that their checks can fail, and their short forms."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench import coded, kernels, large, loads, measure, mount, report, weights, write
from brevisfs.synth import Profile
from tests.mount.conftest import has_fuse

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def case() -> coded.Case:
    """BF16 weights of several blocks and a tensor of less than one."""
    with ThreadPoolExecutor(1) as pool:
        return coded.plan_all(weights.made(1_200_000)["BF16"], Profile.FAST, pool)


def test_ratios_are_taken_round_by_round() -> None:
    times = measure.Times([2.0, 1.0, 9.0], [4.0, 4.0, 9.0], [1.0, 1.0, 1.0], [2.0, 4.0, 1.0])
    assert times.two_cores() == measure.Spread(0.5, 0.25, 1.0)
    assert times.one_core() == measure.Spread(0.5, 0.25, 1.0)


def test_jobs_take_turns_and_each_follows_its_base() -> None:
    done: list[str] = []

    def job(name: str) -> measure.Job:
        return measure.Job(
            lambda: done.append("base"), lambda: done.append(name), after=lambda: done.append("after")
        )

    times = measure.by_turns({"a": job("a"), "b": job("b")}, rounds=2)
    assert done == ["base", "a", "after", "base", "b", "after"] * 3
    assert {len(one.own) for one in times.values()} == {2}


def test_slow_jobs_take_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([0.1, 9.0, 0.1, 0.2] + 3 * [0.1, 9.0, 0.1, 0.2] + 6 * [0.1, 0.2])
    monkeypatch.setattr(measure, "seconds", lambda _: (next(taken),) * 2)
    job = measure.Job(lambda: None, lambda: None)
    times = measure.by_turns({"slow": job, "fast": job}, rounds=9)
    assert times["slow"].own == [9.0] * measure.FEW_ROUNDS
    assert times["fast"].own == [0.2] * 9
    assert measure.per_round(times["slow"].own, times["fast"].own).median == pytest.approx(45)


def test_runs_cover_every_byte_once(case: coded.Case) -> None:
    for parts in (1, 2):
        runs = [run for part in range(parts) for run in case.runs(part, parts)]
        for section in case.sections:
            own = sorted((run.lo, run.hi) for run in runs if run.section is section)
            assert [lo for lo, _ in own] == [0, *(hi for _, hi in own[:-1])]
            assert own[-1][1] == len(section.tensor.data)
    sizes = [sum(run.hi - run.lo for run in case.runs(part, 2)) for part in range(2)]
    assert abs(sizes[0] - sizes[1]) <= 2 * case.largest().block_bytes


def test_what_is_decoded_is_judged(case: coded.Case) -> None:
    case.clear()
    coded.decode_runs(case.runs(0, 2), checked=True)
    with pytest.raises(coded.WrongBytes, match="weight"):
        case.check()
    coded.decode_runs(case.runs(1, 2), checked=True)
    case.check()
    case.out[case.places[-1]] ^= 1
    with pytest.raises(coded.WrongBytes, match="bias"):
        case.check()


def test_a_difference_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "decode_runs", lambda *_: None)
    assert kernels.main(["--quick", "--only", "BF16", "--parts", "profiles"]) == 1
    assert "does not decode to its own bytes" in capsys.readouterr().err


def test_stored_bits_and_entropy(case: coded.Case) -> None:
    assert coded.information(np.array([4, 0, 4, 8], np.uint64)) == 16 * 1.5
    assert coded.information(np.zeros(4, np.uint64)) == 0
    payload = sum(len(section.payload) for section in case.sections)
    assert case.elements * 2 == case.nbytes
    assert case.bits > 8 * payload / case.elements
    assert 8 < case.entropy < 16


def test_a_part_of_tensors_is_whole_rows() -> None:
    tensor = weights.Tensor("w", "F32", (100, 250), np.zeros(100_000, np.uint8))
    scalar = weights.Tensor("s", "F32", (), np.zeros(4, np.uint8))
    first, second = weights.limited([tensor, scalar, tensor], 150_000)
    assert first is tensor
    assert (second.shape, len(second.data)) == ((50, 250), 50_000)


def test_tensors_make_a_file(tmp_path: Path) -> None:
    tensors = weights.made(100_000)["FP16"]
    file = tmp_path / "m.safetensors"
    file.write_bytes(weights.as_file(tensors))
    found = weights.of_files([file], 10**9)["F16"]
    assert [tensor.name for tensor in found] == ["weight", "bias"]
    for before, after in zip(tensors, found, strict=True):
        assert (after.shape, bytes(after.data)) == (before.shape, bytes(before.data))


def test_figures_as_text() -> None:
    assert report.shown(measure.Spread(0.514, 0.0421, 1.0)) == "0.51 (0.042..1.00)"
    assert [report.shown(figure) for figure in (None, 10.6, 3, "fast")] == ["-", "10.600", "3", "fast"]


def test_the_kernels_bench_in_short(tmp_path: Path) -> None:
    """Every dtype, profile and direction, exact; no time is judged."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench.kernels", "--quick", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all exact" in done.stdout
    rows = json.loads(out.read_text())
    seen = {(row["dtype"], row["profile"], row["direction"]) for row in rows["profiles"]}
    kinds = weights.made(600_000)
    assert seen == {(kind, p.value, d) for kind in kinds for p in Profile for d in ("decode", "encode")}
    assert {row["literal"] for row in rows["literals"]} == {
        "huffman 11 bit",
        "tunstall 11 bit",
        "rans 32 lanes",
    }
    assert rows["reads"]
    assert rows["pack"]


@pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3")
def test_the_mount_bench_in_short(tmp_path: Path) -> None:
    """Every load in every state on every system reads what it should; no time is judged."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench.mount", "--quick", "--threads", "1", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())
    seen = {(row["load"], row["state"], row["system"]) for row in parts["1 decoding threads"]}
    systems = ("file", "pass-through", "fast", "balanced", "raw")
    assert seen == {
        (load, state, system)
        for load in loads.everything(torch=False)
        for state in mount.states_of(load, mount.STATES)
        for system in systems
    }
    assert len(parts["listing"]) == 12


@pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3")
def test_the_write_bench_in_short(tmp_path: Path) -> None:
    """Every size of piece, and every load beside a worker; no time is judged."""
    command = [sys.executable, "-m", "bench.write", "--quick", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    for row in (*write.PIECES, *write.BESIDE):
        assert sum(line.startswith(f"{row} ") for line in lines) == 1, done.stdout


def test_packing_takes_little_memory(tmp_path: Path) -> None:
    """A short form of `make test-large`: less memory than half the file, whatever the tensors' sizes."""
    model = tmp_path / "large.safetensors"
    large.make(model, large.sizes(10**9))
    result = large.pack(model, "balanced")
    assert result.stored < result.original / 10
    assert result.peak < result.original / 2
