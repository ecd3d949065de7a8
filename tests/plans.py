"""Plans made real in tests: the bytes of a section encoded with its plan, and decoded again."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from brevisfs import _native
from brevisfs.synth import Memory, Plan, Profile, synthesize


def planned(
    data: bytes, dtype: str | None, shape: Sequence[int] = (), profile: Profile = Profile.BALANCED
) -> Plan:
    """The plan for bytes in memory."""
    return synthesize(Memory(data), dtype, shape, profile)


def encoded(plan: Plan, data: bytes) -> list[bytes]:
    """The payload of every block."""
    program = _native.Program(plan.wire, plan.shared, plan.bits, plan.count, plan.block, plan.classes)
    step = plan.block * plan.bits // 8
    payloads = []
    for index, lo in enumerate(range(0, len(data), step)):
        out = bytearray(program.encode_bound())
        length = program.encode_block(index, data[lo : lo + step], out)
        payloads.append(bytes(out[:length]))
    return payloads


def stored_size(plan: Plan, data: bytes) -> int:
    """Bytes of program, shared parts and payloads."""
    return len(plan.wire) + len(plan.shared) + sum(map(len, encoded(plan, data)))


def restored(plan: Plan, data: bytes) -> bytes:
    """What the encoded blocks decode to."""
    payloads = encoded(plan, data)
    lengths = np.array([len(payload) for payload in payloads], np.uint64)
    starts = np.concatenate((np.zeros(1, np.uint64), np.cumsum(lengths)[:-1].astype(np.uint64)))
    program = _native.Program(plan.wire, plan.shared, plan.bits, plan.count, plan.block)
    out = bytearray(len(data))
    spans = np.stack((starts, lengths), axis=1)
    program.decode(b"".join(payloads), 0, spans, None, out, 0, len(data))
    return bytes(out)


def model(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of tensors given as dtype, shape and bytes, in this order."""
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(data for _, _, data in tensors.values())
