"""Synthesis of one section: the program to store it with, and what else was considered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from brevisfs import safetensors
from brevisfs._native import join_shared
from brevisfs.dsl import (
    Const,
    Huffman,
    Lit,
    Node,
    ProgramError,
    Raw,
    Repeat,
    Transpose,
    Zstd,
    check,
    children,
    to_text,
    to_wire,
)
from brevisfs.synth._columns import Tile, record, tile, tiles_of
from brevisfs.synth._finish import Finished, finish
from brevisfs.synth._literal import CODE_BITS, Choice, Extent, raw
from brevisfs.synth._profile import SETTINGS, Profile, Settings
from brevisfs.synth._search import Hint, expand, expand_root
from brevisfs.synth._source import Part, Source

BLOCK_BYTES = 1 << 17
BLOCK_WORDS = 1 << 16
"""A block has this many words, or more if its words are so narrow that it would not have BLOCK_BYTES."""

WIDEST_RECORD = 8
"""Bytes up to which a record is a word."""

CLOSE = 1.1
"""Choices within this factor of the best are fitted too before one is taken."""

_FLOATING = frozenset({"F16", "BF16", "F32", "F64", "C64"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that was considered, as text, and about how many bytes it would take."""

    text: str
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How to store one section: `count` words of `bits` bits in blocks of `block` words.

    `candidates` are the programs considered, the best for the profile first. The first that keeps the
    limits of the format was fitted to all of the words, so `node` may differ from it in details.
    `classes` has, for encoding, the class of each segment of literals with several tables, by prefix
    index.
    """

    node: Node
    wire: bytes
    shared: bytes
    bits: int
    count: int
    block: int
    candidates: list[Candidate]
    classes: dict[int, NDArray[np.uint8]]


def word_bits(dtype: str | None, nbytes: int) -> int:
    """Bits of the words a tensor is taken as: its elements where they fill the bytes, else bytes."""
    # A complex number is two floats side by side, which have nothing in common to be coded together.
    bits = 32 if dtype == "C64" else safetensors.word_bits(dtype) if dtype else None
    return bits if bits and 8 * nbytes % bits == 0 else 8


def block_words(bits: int, count: int, most: int | None = None) -> int:
    """Words a block: `most` where given, fewer where there are fewer words."""
    most = most or max(BLOCK_WORDS, 8 * BLOCK_BYTES // bits // 64 * 64)
    return min(most, -(-count // 64) * 64, 1 << 20)


def synthesize(
    source: Source, dtype: str | None, shape: Sequence[int], profile: Profile, block: int | None = None
) -> Plan:
    """The program found for the bytes of a tensor of `dtype` and `shape`, which may be unknown or ().

    `block` overrides the words a block. The same bytes and arguments give the same plan. Raises
    ValueError for an empty source; whatever its `read` raises passes through.
    """
    if source.nbytes == 0:
        raise ValueError("nothing to synthesise: the tensor has no bytes")
    bits = word_bits(dtype, source.nbytes)
    part = _part(source, bits, block)
    settings = SETTINGS[profile]
    choices = [
        (part, choice) for choice in expand_root(part, Hint(dtype in _FLOATING, tuple(shape)), settings)
    ]
    if bits == 8 and not isinstance(choices[0][1].node, Const | Repeat):
        choices += _of_records(part, tuple(shape), block, settings)
        choices.sort(key=lambda entry: entry[1].rank)
    part, fitted = _fitted(choices, tuple(shape), block is not None, settings)
    node, shared, classes = fitted.node, join_shared(fitted.shared), fitted.classes
    part = replace(part, block=fitted.block)
    if fitted.size > raw(part.bits, Extent(part.count, part.block)).size:
        node, shared, classes = Lit(Raw()), b"", {}
    candidates = [Candidate(to_text(choice.node), round(choice.size)) for _, choice in choices]
    return Plan(node, to_wire(node), shared, part.bits, part.count, part.block, candidates, classes)


def _of_records(
    part: Part, shape: tuple[int, ...], block: int | None, settings: Settings
) -> list[tuple[Part, Choice]]:
    """Programs for bytes that are records of fields: as wider words if short, else by column."""
    size, bits = record(part, shape)
    if 1 < size <= WIDEST_RECORD:
        wide = _part(part.source, size * part.bits, block)
        return [(wide, choice) for choice in expand(wide, Hint(), settings)]
    if size > WIDEST_RECORD and block is None:
        # What it comes to is estimated; fitting finds the tables.
        estimate = min(bits, part.bits) * part.count / 8
        return [(part, Choice(Transpose(size, Lit(Huffman(1, CODE_BITS))), estimate))]
    return []


def _fitted(
    choices: list[tuple[Part, Choice]], shape: tuple[int, ...], fixed: bool, settings: Settings
) -> tuple[Part, Finished]:
    """The best choice that keeps the limits of the format, fitted to all of the words.

    Where one of another kind is close, both are fitted: one may gain more from tables for its rows.
    Records by column are ranked with what such tables bring.
    """
    fitted: list[tuple[Part, Finished]] = []
    best = choices[0][1].rank
    for part, choice in choices:
        if fitted and (choice.rank > CLOSE * best or _holds_zstd(choice.node)):
            break
        if fitted and type(choice.node) in (Lit, type(fitted[0][1].node)):
            continue
        try:
            check(choice.node, part.bits, part.count)
            found = _finished(part, choice.node, shape, fixed, settings)
            check(found.node, part.bits, part.count)
        except ProgramError:
            continue
        fitted.append((part, found))
        if len(fitted) == 2 or _holds_zstd(choice.node) or isinstance(choice.node, Transpose):
            break
    return min(fitted, key=lambda entry: entry[1].rank)


def _finished(part: Part, node: Node, shape: tuple[int, ...], fixed: bool, settings: Settings) -> Finished:
    """The program fitted, on the tiles that it or the shape speaks of unless the block size is fixed."""
    if prod(shape) != part.count:
        shape = ()
    tiles: list[Tile] = []
    if isinstance(node, Transpose):
        only = tile(node.columns, part.count, part.block)
        node, tiles = node.child, [] if only is None else [only]
    elif not fixed:
        tiles = tiles_of(part, shape)
    return finish(part, node, shape, tiles, settings)


def _holds_zstd(node: Node) -> bool:
    return node == Lit(Zstd()) or any(_holds_zstd(child) for child, _, _ in children(node, 64, 1 << 40))


def _part(source: Source, bits: int, block: int | None) -> Part:
    count = 8 * source.nbytes // bits
    return Part(source, bits, count, block_words(bits, count, block))
