"""Inputs of the C checks: the random cases of tests/programs.py and the golden archives' sections, as files.

python -m tests.native.inputs vectors FILE CASES          what native/tests/vectors.c reads
python -m tests.native.inputs seeds FOLDER TARGET CASES   files that a fuzzer of native/fuzz starts from
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from brevisfs import _native as native
from brevisfs.archive import Reader
from brevisfs.dsl import Huffman, Lit, Rans, Tunstall, from_wire, walk
from tests.archives import opened_path, program_bytes
from tests.golden.test_golden import ARCHIVES, payloads
from tests.programs import random_case

TARGETS = ("decode", "encode")
"""Fuzzers whose inputs are programs; that of `plan` takes words."""
MOST_SEED_BYTES = 3000
MOST_TABLE_BYTES = 300_000
HEAD = struct.Struct("<BBHIQII")
"""Of a fuzzer's input: bits, where, length of wire, block, count, length of shared, span."""


@dataclass(frozen=True)
class Vector:
    """A section: its program, payloads and flat bytes. `any_class`: of a literal of several tables,
    segment i can be coded with table i mod T."""

    bits: int
    count: int
    block: int
    wire: bytes
    shared: bytes
    payloads: list[bytes]
    flat: bytes
    any_class: bool

    def pack(self) -> bytes:
        sizes = (len(self.wire), len(self.shared), len(self.payloads), self.any_class)
        head = struct.pack("<IQIIIII", self.bits, self.count, self.block, *sizes)
        items = [struct.pack("<I", len(payload)) + payload for payload in self.payloads]
        return head + self.wire + self.shared + b"".join(items) + self.flat


@dataclass(frozen=True)
class FuzzInput:
    """What native/fuzz/input.h reads; `rest` is a payload or the bytes to encode."""

    bits: int
    where: int
    block: int
    count: int
    span: int
    wire: bytes
    shared: bytes
    rest: bytes

    def pack(self) -> bytes:
        sizes = (len(self.wire), self.block, self.count, len(self.shared), self.span)
        return HEAD.pack(self.bits, self.where, *sizes) + self.wire + self.shared + self.rest

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Lengths beyond the end mean the end, as in C."""
        head = data[: HEAD.size].ljust(HEAD.size, b"\0")
        bits, where, wire, block, count, shared, span = HEAD.unpack(head)
        body = data[HEAD.size :]
        rest = body[wire:]
        return cls(bits, where, block, count, span, body[:wire], rest[:shared], rest[shared:])

    def index(self) -> int:
        """The block that `where` chooses."""
        blocks = -(-self.count // self.block)
        return blocks - 1 if self.where == 1 else self.where % blocks


def random_vectors(cases: int) -> Iterator[Vector]:
    for seed in range(cases):
        case = random_case(random.Random(seed))
        form = (case.bits, case.count, case.block, case.wire, case.shared)
        yield Vector(*form, case.payloads, case.flat, True)


def golden_vectors() -> Iterator[Vector]:
    for path in ARCHIVES:
        data = path.read_bytes()
        with opened_path(path) as fd:
            reader = Reader(fd)
            for section in reader.sections:
                wire, shared, _ = reader.describe(section)
                node = from_wire(wire, section.bits, section.count)
                form = (section.bits, section.count, section.block, wire, shared)
                classes = any(
                    isinstance(each, Lit)
                    and isinstance(each.encoding, Huffman | Rans | Tunstall)
                    and each.encoding.tables > 1
                    for _, _, each, _, _ in walk(node, section.bits, section.count)
                )
                flat = program_bytes(reader, section)
                yield Vector(*form, payloads(data, reader, section), flat, not classes)


def write_vectors(path: Path, cases: int) -> None:
    with path.open("wb") as file:
        for vector in golden_vectors():
            file.write(vector.pack())
        for vector in random_vectors(cases):
            file.write(vector.pack())


def write_seeds(folder: Path, target: str, cases: int) -> None:
    """The small ones among the random cases, with block 0. Tables cost a fuzzer more than all else does."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, vector in enumerate(random_vectors(cases)):
        form = (vector.bits, vector.count, vector.block)
        if native.Program(vector.wire, vector.shared, *form).memory > MOST_TABLE_BYTES:
            continue
        rest = vector.payloads[0] if target == "decode" else vector.flat[: vector.block * vector.bits // 8]
        seed = FuzzInput(
            vector.bits, 0, vector.block, vector.count, number * 7919, vector.wire, vector.shared, rest
        ).pack()
        if len(seed) <= MOST_SEED_BYTES:
            (folder / f"seed-{number}").write_bytes(seed)


def write_plan_seeds(folder: Path, cases: int) -> None:
    """The words of small random cases, each with one question about them (native/tests/plan.h)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(cases):
        rng = random.Random(number)
        case = random_case(rng)
        size = next(size for size in (1, 2, 4, 8) if case.bits <= 8 * size)
        words = b"".join(word.to_bytes(size, "little") for word in case.words)
        head = bytes((number % 256, case.bits - 1)) + rng.randbytes(14)
        if len(words) <= MOST_SEED_BYTES:
            (folder / f"seed-{number}").write_bytes(head + words)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["vectors", path, cases]:
            write_vectors(Path(path), int(cases))
        case ["seeds", folder, target, cases] if target in TARGETS:
            write_seeds(Path(folder), target, int(cases))
        case ["seeds", folder, "plan", cases]:
            write_plan_seeds(Path(folder), int(cases))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
