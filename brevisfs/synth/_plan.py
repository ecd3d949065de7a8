"""Synthesis of one section: the program to store it with, and what else was considered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from brevisfs import safetensors
from brevisfs._native import Program, ProgramRefused, join_shared
from brevisfs.archive import Ref
from brevisfs.dsl import (
    Const,
    Lit,
    Map,
    Merge,
    Node,
    Palette,
    ProgramError,
    Raw,
    Scan,
    Select,
    Transpose,
    Zstd,
    check,
    to_text,
    to_wire,
    walk,
)
from brevisfs.synth import _steps, _times
from brevisfs.synth._columns import Tile, tile, tiles_of
from brevisfs.synth._finish import Finished, finish
from brevisfs.synth._hole import Hole
from brevisfs.synth._literal import Choice, Extent, inside, raw
from brevisfs.synth._prior import Prior
from brevisfs.synth._profile import SETTINGS, Profile, Settings
from brevisfs.synth._sample import spread
from brevisfs.synth._search import ADAPTIVE, Effort, Found, Strategy, search
from brevisfs.synth._source import Part, Source, block_words
from brevisfs.synth._tables import BLOCK_ENTRY_BYTES

CLOSE = 1.1
"""Choices within this factor of the best are fitted too before one is taken."""

FINALISTS = 4

TRIED_BLOCKS = 4
"""Blocks encoded to compare programs of which one holds zstd."""

_FLOATING = frozenset({"F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64", "C64"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that was considered, None for the bytes of another section, and about what it would take."""

    node: Node | None
    size: int

    @property
    def text(self) -> str:
        """The program as text."""
        return "the bytes of another section" if self.node is None else to_text(self.node)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to store one section: `count` words of `bits` bits in blocks of `block` words.

    `candidates` are the programs considered, the best for the profile first: those that were fitted to
    all of the words, as they came out, then the others as the search told them.
    `classes` has, for encoding, the class of each segment of literals with several tables, by prefix
    index. With a `ref`, the program is of the differences from section `target`.
    """

    node: Node
    wire: bytes
    shared: bytes
    bits: int
    count: int
    block: int
    candidates: list[Candidate]
    effort: Effort
    classes: dict[int, NDArray[np.uint8]]
    ref: Ref = Ref.NONE
    target: int = 0


def word_bits(dtype: str | None, nbytes: int) -> int:
    """Bits of the words a tensor is taken as: its elements where they fill the bytes, else bytes."""
    # A complex number is two floats side by side, which have nothing in common to be coded together.
    bits = 32 if dtype == "C64" else safetensors.word_bits(dtype) if dtype else None
    return bits if bits and 8 * nbytes % bits == 0 else 8


def synthesize(
    source: Source,
    dtype: str | None,
    shape: Sequence[int],
    profile: Profile,
    block: int | None = None,
    *,
    strategy: Strategy = ADAPTIVE,
    prior: Callable[[], Prior] = Prior,
) -> Plan:
    """The program found for the bytes of a tensor of `dtype` and `shape`, which may be unknown or ().

    `block` overrides the words a block. `prior` is asked if the order of the search matters. The same
    bytes and arguments give the same plan. Raises ValueError for an empty source; whatever its `read`
    raises passes through.
    """
    return fit(look_up(source, dtype, shape, profile, block, strategy, prior), shape, profile, block)


def fit(found: Found, shape: Sequence[int], profile: Profile, block: int | None) -> Plan:
    """The plan with the best of the programs found, fitted to all of the words."""
    finalists = _fitted(found.programs, tuple(shape), block is not None, SETTINGS[profile])
    part, fitted = finalists[0].part, finalists[0].fitted
    node, shared, classes = fitted.node, join_shared(fitted.shared), fitted.classes
    if fitted.size > raw(part.bits, Extent(part.count, fitted.block)).size:
        node, shared, classes = Lit(Raw()), b"", {}
    candidates = [Candidate(each.fitted.node, round(each.size)) for each in finalists]
    tried = {each.choice.node for each in finalists}
    candidates += [
        Candidate(choice.node, round(choice.size)) for _, choice in found.programs if choice.node not in tried
    ]
    return Plan(
        node, to_wire(node), shared, part.bits, part.count, fitted.block, candidates, found.effort, classes
    )


def tied(plan: Plan, target: int) -> Plan:
    """The plan for a section with the bytes of section `target`, which has this `plan`."""
    node = Const(0)
    wire = to_wire(node)
    candidates = [Candidate(None, len(wire))]
    effort = Effort(0, 0, 0)
    return Plan(node, wire, b"", plan.bits, plan.count, plan.block, candidates, effort, {}, Ref.XOR, target)


def look_up(
    source: Source,
    dtype: str | None,
    shape: Sequence[int],
    profile: Profile,
    block: int | None,
    strategy: Strategy,
    prior: Callable[[], Prior],
) -> Found:
    """What the search finds, before anything is fitted. Arguments and errors are those of `synthesize`."""
    if source.nbytes == 0:
        raise ValueError("nothing to synthesise: the tensor has no bytes")
    bits = word_bits(dtype, source.nbytes)
    count = 8 * source.nbytes // bits
    settings = SETTINGS[profile]
    part = Part(source, bits, count, block_words(bits, count, settings.block, block))
    root = Hole(
        part,
        0,
        dtype or "bytes",
        settings,
        floating=dtype in _FLOATING,
        shape=tuple(shape),
        fixed=block is not None,
    )
    return search(root, strategy, prior)


@dataclass(frozen=True, slots=True)
class _Finalist:
    """A choice fitted to all of the words, its bytes, and what finalists are compared by."""

    part: Part
    choice: Choice
    fitted: Finished
    size: float
    rank: float


def _fitted(
    choices: list[tuple[Part, Choice]], shape: tuple[int, ...], fixed: bool, settings: Settings
) -> list[_Finalist]:
    """The best choices that keep the limits of the format, fitted to all of the words, the best first.

    Where others of another kind are close, these are fitted too: they may gain more from tables for rows.
    Records by column are ranked with what such tables bring.
    """
    made: list[tuple[Part, Choice, Finished]] = []
    kinds: set[tuple[bool, frozenset[type[Node]]]] = set()
    for part, choice in choices:
        if made and choice.rank > CLOSE * made[0][1].rank:
            break
        kind = (isinstance(choice.node, Lit), _kind(choice.node))
        if made and (isinstance(choice.node, Lit) or kind in kinds):
            continue
        try:
            fitted = _finished(part, choice.node, shape, fixed, settings)
            check(fitted.node, part.bits, part.count)
        except (ProgramError, ProgramRefused):
            continue
        made.append((part, choice, fitted))
        kinds.add(kind)
        if len(made) == FINALISTS or isinstance(choice.node, Transpose):
            break
    # What zstd comes to is not known before words are encoded.
    encoded = len(made) > 1 and any(_holds_zstd(fitted.node) for _, _, fitted in made)
    finalists = []
    for part, choice, fitted in made:
        known = choice.size if _holds_zstd(fitted.node) else fitted.size
        size = _encoded(part, fitted) if encoded else known
        rank = size + choice.toll if encoded else fitted.rank + _inner_toll(fitted.node, part, settings)
        finalists.append(_Finalist(part, choice, fitted, size, rank))
    return sorted(finalists, key=lambda finalist: finalist.rank)


def _inner_toll(node: Node, part: Part, settings: Settings) -> float:
    """What decoding the operators above the leaves pays, but for Merge."""
    time = 0.0
    for _, _, inner, _, count in walk(node, part.bits, part.count):
        match inner:
            case Map(function, _):
                time += count * _steps.time(function)
            case Scan(kind, _):
                time += count * _steps.time(kind)
            case Select():
                time += count * _times.SELECT
            case Palette():
                time += count * _times.PALETTE
    return settings.toll * time / 8


def _encoded(part: Part, found: Finished) -> float:
    """Bytes of a fitted program, from some of its blocks."""
    shared = join_shared(found.shared)
    fitted = replace(part, block=found.block)
    program = Program(to_wire(found.node), shared, part.bits, part.count, found.block, found.classes)
    blocks = -(-part.count // found.block)
    payload = bytearray(program.encode_bound())
    tried = spread(blocks, TRIED_BLOCKS)
    spent = sum(program.encode_block(index, fitted.block_bytes(index), payload) for index in tried)
    words = sum(min(found.block, part.count - index * found.block) for index in tried)
    return len(shared) + spent / words * part.count + BLOCK_ENTRY_BYTES * blocks


def _kind(node: Node) -> frozenset[type[Node]]:
    """The operators by which a word depends on others or moves: what rows and columns gain hangs on these."""
    return frozenset(type(each) for each in inside(node) if not isinstance(each, Lit | Const | Map | Merge))


def _finished(part: Part, node: Node, shape: tuple[int, ...], fixed: bool, settings: Settings) -> Finished:
    """The program fitted, on the tiles that it or the shape speaks of unless the block size is fixed."""
    shape = _shape_in(shape, part.count)
    tiles: list[Tile] = []
    if isinstance(node, Transpose):
        only = tile(node.columns, part.count, part.block)
        node, tiles = node.child, [] if only is None else [only]
    elif not fixed:
        tiles = tiles_of(part, shape)
    return finish(part, node, shape, tiles, settings)


def _shape_in(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape of a tensor in words of which it has `count`; () if its rows are not whole ones."""
    whole, size = shape[:-1], prod(shape)
    row, rest = divmod(count, max(1, prod(whole)))
    return (*whole, row) if size and shape and not rest and (row * prod(whole) == count) else ()


def _holds_zstd(node: Node) -> bool:
    return any(each == Lit(Zstd()) for each in inside(node))
