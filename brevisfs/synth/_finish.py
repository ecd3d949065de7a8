"""From a program found on samples to one that holds for all of the data, with its shared parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Program, huffman_tables, join_shared, rans_tables
from brevisfs.dsl import Const, Huffman, Lit, Node, Rans, Repeat, Scan, Transpose, Tunstall, to_wire
from brevisfs.synth._columns import Tile
from brevisfs.synth._leaves import Place, count_leaves, places_of, rebuilt
from brevisfs.synth._literal import NODE_BYTES, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._source import Part
from brevisfs.synth._tables import lay_out


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that holds for all of the words, its shared parts, bytes and rank, zstd's not counted.

    `block` is the block size it is for. `classes` has the class of each segment of the leaves with
    several tables, by prefix index.
    """

    node: Node
    shared: tuple[bytes, ...]
    size: float
    rank: float
    block: int
    classes: dict[int, NDArray[np.uint8]]


def finish(
    part: Part, node: Node, shape: tuple[int, ...], tiles: Sequence[Tile], settings: Settings
) -> Finished:
    """The program `node` fitted to all of the words of the part, whose rows are those of `shape`.

    Coded leaves may become columns of one of the tiles, for which the block size changes.
    """
    if isinstance(node, Repeat):
        return _finish_repeat(part, node, shape, settings)
    places = places_of(node, part.bits, part.count)
    leaves = count_leaves(part, node, places)
    choices = {index: leaf.completed(settings) for index, leaf in leaves.items()}
    laid = lay_out(part, node, leaves, choices, shape, tiles, settings)
    done, _ = rebuilt(node, 0, {index: dealt.choice.node for index, dealt in laid.leaves.items()})
    shared, classes, added = [], {}, 0
    for index, dealt in laid.leaves.items():
        completed, hists = dealt.choice.node, leaves[index].hist
        added += isinstance(completed, Transpose)
        if dealt.classing is not None:
            classes[index + added], hists = dealt.classing.classes, dealt.classing.hists
        shared += [dealt.head + each for each in _tables(completed, hists)]
    choices = {index: dealt.choice for index, dealt in laid.leaves.items()}
    size = _inner_bytes(laid.part, places) + sum(choice.size for choice in choices.values())
    rank = size + sum(choice.toll for choice in choices.values())
    return Finished(done, tuple(shared), size, rank, laid.part.block, classes)


def _tables(leaf: Node, hists: NDArray[np.uint64]) -> list[bytes]:
    """The shared part that a completed leaf has, if any."""
    match leaf.child if isinstance(leaf, Transpose) else leaf:
        case Lit(Huffman(max_length=max_length)):
            return [huffman_tables(hists, max_length)]
        case Lit(Rans(prob_bits=prob_bits) | Tunstall(prob_bits=prob_bits)):
            return [rans_tables(hists, prob_bits)]
    return []


def _finish_repeat(part: Part, node: Repeat, shape: tuple[int, ...], settings: Settings) -> Finished:
    # A Repeat's child is evaluated as one block.
    count = part.count // node.times
    period = replace(part, count=count, block=-(-count // 64) * 64)
    child = finish(period, node.child, shape, (), settings)
    shared = join_shared(child.shared)
    program = Program(to_wire(child.node), shared, part.bits, count, period.block, child.classes)
    payload = bytearray(program.encode_bound())
    length = program.encode_block(0, period.read(0, period.nbytes), payload)
    # The classes stand in the payload: none are left to be encoded with the blocks.
    parts = (bytes(payload[:length]), *child.shared)
    size, rank = child.size + NODE_BYTES, child.rank + NODE_BYTES
    return Finished(Repeat(node.times, child.node), parts, size, rank, part.block, {})


def _inner_bytes(part: Part, places: list[Place]) -> int:
    """What the nodes that are no leaves take: themselves, and a Scan its first words."""
    total = 0
    for place in places:
        if not isinstance(place.node, Lit | Const):
            total += NODE_BYTES
        if isinstance(place.node, Scan):
            total += Extent(place.count, part.block).blocks * ((place.bits + 7) // 8)
    return total
