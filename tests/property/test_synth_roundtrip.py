"""Whatever the bytes are, the plan found for them encodes them, decodes to them and is hardly larger."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brevisfs.dsl import check, from_wire, parse_text, to_text
from brevisfs.synth import Profile
from tests.plans import planned, restored, stored_size

DTYPES = [
    "BOOL",
    "F4",
    "F6_E3M2",
    "U8",
    "F8_E5M2",
    "I16",
    "F16",
    "BF16",
    "I32",
    "F32",
    "C64",
    "F64",
    "I64",
    "XX",
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Bytes with some structure: runs, periods, ramps, narrow values, steps, pasted together."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 3_000))
        kind = np.dtype(draw(st.sampled_from(["u1", "<u2", "<u4", "<u8"])))
        match draw(
            st.sampled_from(
                ["noise", "constant", "ramp", "period", "narrow", "walk", "sparse", "few", "pruned", "float"]
            )
        ):
            case "noise":
                words = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
            case "constant":
                words = np.full(count, rng.integers(0, 200), kind)
            case "ramp":
                words = (np.arange(count) * int(rng.integers(1, 50))).astype(kind)
            case "period":
                words = np.resize(np.frombuffer(rng.bytes(7 * kind.itemsize), kind), count)
            case "narrow":
                words = rng.integers(90, 90 + int(rng.integers(2, 60)), count).astype(kind)
            case "walk":
                words = np.cumsum(rng.integers(-3, 4, count)).astype(kind)
            case "sparse":
                words = np.where(rng.random(count) < 0.01, rng.integers(0, 256, count), 3).astype(kind)
            case "few":
                some = np.frombuffer(rng.bytes(9 * kind.itemsize), kind)
                words = some[rng.integers(0, len(some), count)]
            case "pruned":
                chance = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
                words = np.where(rng.random(count) < 0.5, kind.type(1), chance)
            case _:
                words = rng.normal(size=count).astype("<f4")
        parts.append(words.tobytes())
    return b"".join(parts)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=streams(), dtype=st.sampled_from(DTYPES), profile=st.sampled_from(list(Profile)))
def test_every_stream_comes_back_and_hardly_grows(data: bytes, dtype: str, profile: Profile) -> None:
    plan = planned(data, dtype, (), profile)
    assert restored(plan, data) == data
    assert stored_size(plan, data) <= len(data) + 32
    check(plan.node, plan.bits, plan.count)
    assert from_wire(plan.wire, plan.bits, plan.count) == plan.node
    assert parse_text(to_text(plan.node)) == plan.node
