"""Whatever the bytes are, the plan found for them encodes them, decodes to them and is hardly larger."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brevisfs.archive import Kind, Writer
from brevisfs.dsl import check, from_wire, parse_text, to_text
from brevisfs.synth import Plan, Profile
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


def bookkeeping(plan: Plan) -> int:
    """What an archive says of the section beside its program, shared parts and payloads."""
    out = BytesIO()
    nbytes = plan.count * plan.bits // 8
    writer = Writer(out.write, nbytes)
    form = (plan.bits, plan.count, plan.block, plan.wire, plan.shared)
    writer.begin_section(Kind.TENSOR, "F16", 0, *form)
    for _ in range(-(-plan.count // plan.block)):
        writer.add_block(b"", 0)
    writer.finish(bytes(32))
    empty = BytesIO()
    Writer(empty.write, 0).finish(bytes(32))
    return len(out.getvalue()) - len(empty.getvalue()) - len(plan.wire) - len(plan.shared)


@given(
    st.integers(0, 2**32),
    st.one_of(st.integers(1, 5_000), st.integers(4_096, 70_000), st.sampled_from([65_535, 65_536, 65_537])),
    st.sampled_from(DTYPES),
    st.sampled_from(list(Profile)),
    st.sampled_from(["noise", "nearly noise", "normal"]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_tensor_takes_more_than_it_is_by_more_than_the_bound(
    seed: int, nbytes: int, dtype: str, profile: Profile, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    nbytes = -(-nbytes // 24) * 24  # a whole number of words of every dtype
    words = rng.integers(0, 256, nbytes, np.uint8)
    if kind == "nearly noise":
        words[::16] &= 0x7F
    data = rng.normal(size=nbytes // 4).astype("<f4").tobytes() if kind == "normal" else words.tobytes()
    plan = planned(data, dtype, (), profile)
    assert stored_size(plan, data) + bookkeeping(plan) <= 1.001 * len(data) + 64
