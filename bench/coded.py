"""Tensors as an archive holds them, in memory, and the calls that decode and encode them.

Blocks are decoded as the archive reader does: one call for each run of blocks of one tensor.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.measure import Bytes, copy
from bench.weights import Tensor, element_bits
from brevisfs import _native
from brevisfs.dsl import Lit, Node, Pack, Raw, Repeat, walk
from brevisfs.synth import Memory, Plan, Profile, synthesize

RUN_BYTES = 4 << 20
"""Bytes one call decodes at most, as in the archive reader."""

RECORD_BYTES, BLOCK_BYTES = 48 + 56, 4 + 16
"""What a section and a block take in an archive beside programs, shared parts and payloads."""

_ALIGN = 64
Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Parameters:
    """What a native program is made of."""

    wire: bytes
    shared: bytes
    bits: int
    count: int
    block: int
    classes: dict[int, NDArray[np.uint8]]

    def program(self) -> _native.Program:
        """On the kernels that BREVISFS_CPU names now."""
        return _native.Program(self.wire, self.shared, self.bits, self.count, self.block, self.classes)


@dataclass(frozen=True)
class Section:
    """One tensor, encoded. `spans`: start and length of each block in `payload`, `checks`: their XXH3."""

    tensor: Tensor
    node: Node
    parameters: Parameters
    program: _native.Program
    payload: Bytes
    spans: Numbers
    checks: Numbers

    @property
    def block_bytes(self) -> int:
        """Flat bytes of a full block."""
        return self.program.block * self.program.bits // 8

    @property
    def stored(self) -> int:
        """Bytes of an archive that it takes, with its share of the index."""
        prologue = RECORD_BYTES + len(self.parameters.wire) + len(self.parameters.shared)
        return prologue + len(self.payload) + BLOCK_BYTES * len(self.spans)

    @property
    def elements(self) -> int:
        """How many numbers the tensor has."""
        return 8 * len(self.tensor.data) // element_bits(self.tensor)

    def block(self, index: int) -> Bytes:
        """The flat bytes of a block."""
        return self.tensor.data[index * self.block_bytes : (index + 1) * self.block_bytes]


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks of one section, of which its flat bytes `lo` to `hi` are wanted."""

    section: Section
    first: int
    blocks: int
    lo: int
    hi: int
    source: Bytes
    out: Bytes
    spans: Numbers
    checks: Numbers


@dataclass(frozen=True)
class Case:
    """Sections, and room for all they decode to, which is written again and again."""

    sections: list[Section]
    out: Bytes
    places: list[int]

    @property
    def nbytes(self) -> int:
        """Bytes of all the tensors."""
        return sum(len(section.tensor.data) for section in self.sections)

    @property
    def elements(self) -> int:
        """Numbers of all the tensors."""
        return sum(section.elements for section in self.sections)

    @property
    def bits(self) -> float:
        """Stored bits a number, all included."""
        return 8 * sum(section.stored for section in self.sections) / self.elements

    @property
    def entropy(self) -> float:
        """Bits a number at which an order-0 coder without tables would store the same fields."""
        return sum(entropy_bits(section) for section in self.sections) / self.elements

    def largest(self) -> Section:
        """The section of most bytes."""
        return max(self.sections, key=lambda section: len(section.tensor.data))

    def runs(self, part: int, parts: int) -> list[Run]:
        """The runs of one of `parts` equal shares of the bytes, to a block."""
        share = self.nbytes / parts
        found, passed = [], 0
        for section, place in zip(self.sections, self.places, strict=True):
            size, step = len(section.tensor.data), section.block_bytes
            out = self.out[place : place + size]
            owners = [int((passed + index * step) // share) for index in range(len(section.spans))]
            begin = owners.index(part) if part in owners else 0
            most = max(1, RUN_BYTES // step)
            for first in range(begin, begin + owners.count(part), most):
                last = min(first + most, begin + owners.count(part))
                found.append(run(section, first * step, min(size, last * step), out))
            passed += size
        return found

    def clear(self) -> None:
        """Makes what a decoder does not write seen as different."""
        self.out.fill(0xA5)

    def check(self) -> None:
        """Raises WrongBytes unless `out` has what the tensors have."""
        for section, place in zip(self.sections, self.places, strict=True):
            data = section.tensor.data
            if not np.array_equal(self.out[place : place + len(data)], data):
                raise WrongBytes(f"tensor {section.tensor.name} does not decode to its own bytes")


class WrongBytes(Exception):
    """Something decoded to other bytes than went in."""


def run(section: Section, lo: int, hi: int, out: Bytes) -> Run:
    """The run of blocks that bytes lo..hi of a section touch; `out` has all of the section, or just these."""
    first, last = lo // section.block_bytes, -(-hi // section.block_bytes)
    target = out if len(out) == hi - lo else out[lo:hi]
    spans, checks = section.spans[first:last], section.checks[first:last]
    return Run(section, first, last - first, lo, hi, section.tensor.data[lo:hi], target, spans, checks)


def plan_all(tensors: list[Tensor], profile: Profile, pool: ThreadPoolExecutor) -> Case:
    """The tensors under a profile, planned and encoded."""
    return case(list(pool.map(partial(_planned, profile=profile), tensors)))


def case(sections: list[Section]) -> Case:
    """Lays out room for the sections, one after the other on whole cache lines."""
    sizes = [-(-len(section.tensor.data) // _ALIGN) * _ALIGN for section in sections]
    places = [0, *itertools.accumulate(sizes)]
    return Case(sections, np.zeros(places[-1], np.uint8), places[:-1])


def _planned(tensor: Tensor, profile: Profile) -> Section:
    plan: Plan = synthesize(Memory(tensor.data.data), tensor.dtype, tensor.shape, profile)
    parameters = Parameters(plan.wire, plan.shared, plan.bits, plan.count, plan.block, plan.classes)
    return encoded(tensor, plan.node, parameters)


def encoded(tensor: Tensor, node: Node, parameters: Parameters) -> Section:
    """All blocks of a tensor under a program."""
    program = parameters.program()
    step = program.block * program.bits // 8
    room = bytearray(program.encode_bound())
    parts, spans, checks, position = [], [], [], 0
    for index, lo in enumerate(range(0, len(tensor.data), step)):
        data = tensor.data[lo : lo + step]
        length = program.encode_block(index, data, room)
        parts.append(bytes(room[:length]))
        spans.append((position, length))
        checks.append(_native.checksum(data))
        position += length
    payload = np.frombuffer(bytearray().join(parts), np.uint8)
    return Section(
        tensor, node, parameters, program, payload, np.array(spans, np.uint64), np.array(checks, np.uint64)
    )


def copy_runs(runs: list[Run]) -> None:
    """What decoding is compared with."""
    for entry in runs:
        copy(entry.out, entry.source)


def decode_runs(runs: list[Run], checked: bool, programs: dict[int, _native.Program] | None = None) -> None:
    """Decodes; `programs` by id of the section replace the sections' own."""
    for entry in runs:
        section = entry.section
        program = programs[id(section)] if programs else section.program
        checks = entry.checks if checked else None
        program.decode(section.payload, entry.first, entry.spans, checks, entry.out, entry.lo, entry.hi)


def encode_runs(runs: list[Run], room: bytearray, checked: bool) -> None:
    """Encodes block by block into the same room; checked means that checksums are taken too."""
    for entry in runs:
        for index in range(entry.first, entry.first + entry.blocks):
            data = entry.section.block(index)
            entry.section.program.encode_block(index, data, room)
            if checked:
                _native.checksum(data)


def room_for(sections: list[Section]) -> bytearray:
    """Enough for a block of any of the sections."""
    return bytearray(max(section.program.encode_bound() for section in sections))


def entropy_bits(section: Section) -> float:
    """Bits of all literals of a section at their order-0 entropy, one distribution a literal.

    Literals stored as they are count in full, the child of a Repeat not at all (it is stored once).
    """
    own = section.parameters
    analysis = _native.Analysis(own.wire, own.bits, own.count, own.block)
    total = 0.0
    for index, node, bits, count in _repeated_left_out(section):
        match node:
            case Lit(Raw()):
                total += bits * count
            case Lit(Pack(width, _)):
                total += width * count
            case Lit() if bits > 16:
                total += bits * count
            case Lit():
                hist = np.zeros((1, 1 << bits), np.uint64)
                for block in range(len(section.spans)):
                    analysis.histogram(block, section.block(block), index, hist)
                total += information(hist)
    return total


def _repeated_left_out(section: Section) -> Iterator[tuple[int, Node, int, int]]:
    inside: int | None = None
    for index, depth, node, bits, count in walk(
        section.node, section.parameters.bits, section.parameters.count
    ):
        if inside is None or depth <= inside:
            inside = depth if isinstance(node, Repeat) else None
            yield index, node, bits, count


def information(hist: Numbers) -> float:
    """Order-0 entropy in bits of all that a histogram counts."""
    counts = hist[hist > 0].astype(np.float64)
    total = counts.sum()
    return float(total * np.log2(total) - (counts * np.log2(counts)).sum()) if len(counts) else 0.0
