"""Archives made in tests: sections with the reference encoder's payloads, put together by the real Writer."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np

from brevisfs import _native
from brevisfs.archive import Kind, Reader, Ref, Section, Writer, difference
from brevisfs.dsl import Node, parse_text, to_wire
from brevisfs.dsl.reference import build_shared, encode_block, unflatten
from tests.programs import random_case


@dataclass(frozen=True)
class Part:
    """One section: a program, its shared parts, the section's bytes and its blocks' payloads."""

    kind: Kind
    dtype: str | None
    bits: int
    count: int
    block: int
    wire: bytes
    shared: bytes
    payloads: Sequence[bytes]
    flat: bytes
    ref: Ref = Ref.NONE
    target: int = 0


def encoded(
    node: Node | str, bits: int, flat: bytes, block: int, kind: Kind = Kind.TENSOR, dtype: str | None = None
) -> Part:
    """`flat` as a section of one program, given as a node or in text form."""
    count = len(flat) * 8 // bits
    program = parse_text(node) if isinstance(node, str) else node
    words = unflatten(flat, bits)
    shared = build_shared(program, bits, count, block, words)
    payloads = [
        encode_block(program, bits, count, block, at // block, shared, words[at : at + block])
        for at in range(0, count, block)
    ]
    return Part(kind, dtype, bits, count, block, to_wire(program), shared, payloads, flat)


def referring(node: Node | str, flat: bytes, ref: Ref, target: int, parts: Sequence[Part]) -> Part:
    """`flat` as a section whose program gives its differences from section `target` of `parts`."""
    other = parts[target]
    part = encoded(node, other.bits, differing(flat, other.flat, other.bits, ref), other.block)
    return replace(part, flat=flat, ref=ref, target=target)


def differing(flat: bytes, target: bytes, bits: int, ref: Ref) -> bytes:
    """What the program of a section that holds `flat` gives."""
    one, other = np.frombuffer(flat, np.uint8), np.frombuffer(target, np.uint8)
    return bytes(difference(one, other, bits, ref))


def program_bytes(reader: Reader, section: Section) -> bytes:
    """What the section's program gives: its own bytes if it refers to no other."""
    flat = read(reader, section.offset, section.end)
    if section.ref == Ref.NONE:
        return flat
    other = reader.sections[section.target]
    return differing(flat, read(reader, other.offset, other.end), section.bits, section.ref)


def random_parts(seed: int, sections: int) -> list[Part]:
    """Sections of random programs, at least one block each."""
    rng = random.Random(seed)
    parts = []
    for _ in range(sections):
        case = random_case(rng)
        coded = (case.wire, case.shared, case.payloads, case.flat)
        parts.append(Part(rng.choice(list(Kind)), "F32", case.bits, case.count, case.block, *coded))
    return parts


def original(parts: Sequence[Part]) -> bytes:
    """The file that the sections make up."""
    return b"".join(part.flat for part in parts)


def assemble(parts: Sequence[Part], sha256: bytes | None = None) -> bytes:
    """The archive of the sections; `sha256` in place of the true one."""
    whole = original(parts)
    out = BytesIO()
    writer = Writer(out.write, len(whole))
    offset = 0
    for part in parts:
        form = (part.bits, part.count, part.block, part.wire, part.shared)
        writer.begin_section(part.kind, part.dtype, offset, *form, part.ref, part.target)
        size = part.block * part.bits // 8
        for index, payload in enumerate(part.payloads):
            writer.add_block(payload, _native.checksum(part.flat[index * size : (index + 1) * size]))
        offset += len(part.flat)
    writer.finish(sha256 or hashlib.sha256(whole).digest())
    assert writer.stored == len(out.getvalue())
    return out.getvalue()


@contextmanager
def opened(data: bytes) -> Iterator[int]:
    """A descriptor of a file that holds `data`."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


@contextmanager
def opened_path(path: Path) -> Iterator[int]:
    """A descriptor of a file that exists."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def read(reader: Reader, begin: int, end: int) -> bytes:
    """The original's bytes begin..end."""
    out = bytearray(end - begin)
    reader.read_into(begin, out)
    return bytes(out)
