"""From a program found on samples to one that holds for all of the data, with its shared parts.

One native pass over all blocks counts the words of every narrow leaf, and completes it anew from
what all words are: symbols that no sample had are in the tables, and a Const or pack that does not
hold gives way to what does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brevisfs._native import Analysis, Buffer, Program, huffman_tables, join_shared, rans_tables
from brevisfs.dsl import (
    Concat,
    Const,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Rans,
    Raw,
    Repeat,
    Scan,
    Sparse,
    Zstd,
    to_wire,
    walk,
)
from brevisfs.synth import _literal
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._source import Part

RARE = 0.02
"""Share of exceptions up to which a wide Const becomes sparse instead of raw."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that holds for all of the words, its shared parts and its bytes, zstd's not counted."""

    node: Node
    shared: tuple[bytes, ...]
    size: float


def finish(part: Part, node: Node, settings: Settings) -> Finished:
    """The program `node` fitted to all of the words of the part."""
    if isinstance(node, Repeat):
        return _finish_repeat(part, node, settings)
    leaves = _count_leaves(part, node, settings)
    choices = {index: leaf.completed(settings) for index, leaf in leaves.items()}
    done, _ = _rebuilt(node, 0, choices)
    shared = []
    for index, leaf in leaves.items():
        match choices[index].node:
            case Lit(Huffman(max_length=max_length)):
                shared.append(huffman_tables(leaf.hist, max_length))
            case Lit(Rans(prob_bits=prob_bits)):
                shared.append(rans_tables(leaf.hist, prob_bits))
    inner = len(list(walk(node, part.bits, part.count))) - len(leaves)
    size = NODE_BYTES * inner + sum(choice.size for choice in choices.values())
    return Finished(done, tuple(shared), size)


def _finish_repeat(part: Part, node: Repeat, settings: Settings) -> Finished:
    period = part.part(0, part.count // node.times)
    child = finish(period, node.child, settings)
    grid = -(-period.count // 64) * 64
    program = Program(to_wire(child.node), join_shared(child.shared), part.bits, period.count, grid)
    payload = bytearray(program.encode_bound())
    length = program.encode_block(0, period.read(0, period.nbytes), payload)
    shared = (bytes(payload[:length]), *child.shared)
    return Finished(Repeat(node.times, child.node), shared, child.size + NODE_BYTES)


class _Leaf:
    """What is learnt about one leaf from all of its words."""

    def __init__(self, node: Node, bits: int, extent: Extent, settings: Settings) -> None:
        self.node, self.bits, self.extent = node, bits, extent
        self.fixed = node in (Lit(Raw()), Lit(Zstd()))
        self.narrow = not self.fixed and bits <= settings.symbol_bits
        self.hist = np.zeros(1 << bits if self.narrow else 0, np.uint64)
        self.others = 0

    def add(self, analysis: Analysis, index: int, block: int, data: Buffer) -> None:
        """Take in the leaf's words in one block."""
        if self.narrow:
            analysis.histogram(block, data, index, self.hist)
        elif isinstance(self.node, Const):
            words = analysis.words(block, data, index)
            self.others += int(np.count_nonzero(words != words.dtype.type(self.node.word)))

    def completed(self, settings: Settings) -> Choice:
        """The leaf that fits all of the words."""
        if self.narrow:
            return _literal.complete(self.hist.astype(np.int64), self.bits, self.extent, settings)
        if self.node == Lit(Zstd()):
            return Choice(self.node, NODE_BYTES)
        if isinstance(self.node, Const) and self.others <= RARE * self.extent.count:
            return _literal.constant(self.node.word) if not self.others else self._sparse(self.node.word)
        return _literal.raw(self.bits, self.extent)

    def _sparse(self, base: int) -> Choice:
        return Choice(Lit(Sparse(base)), NODE_BYTES + self.others * (3 + self.bits / 8))


def _count_leaves(part: Part, node: Node, settings: Settings) -> dict[int, _Leaf]:
    """Each leaf by prefix index, with all of its words taken in."""
    leaves = {
        index: _Leaf(leaf, bits, Extent(count, part.block), settings)
        for index, _, leaf, bits, count in walk(node, part.bits, part.count)
        if isinstance(leaf, Lit | Const)
    }
    wanted = [(index, leaf) for index, leaf in leaves.items() if leaf.narrow or isinstance(leaf.node, Const)]
    analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
    for block, data in enumerate(part.block_bytes() if wanted else ()):
        for index, leaf in wanted:
            leaf.add(analysis, index, block, data)
    return leaves


def _rebuilt(node: Node, index: int, leaves: dict[int, Choice]) -> tuple[Node, int]:
    """The node at prefix `index` with its leaves exchanged, and the index after its last one."""
    match node:
        case Lit() | Const():
            return leaves[index].node, index + 1
        case Concat(children=parts) | Merge(children=parts):
            after, rebuilt = index + 1, []
            for part in parts:
                child, after = _rebuilt(part, after, leaves)
                rebuilt.append(child)
            return replace(node, children=tuple(rebuilt)), after
        case Map() | Scan() | Repeat():
            child, after = _rebuilt(node.child, index + 1, leaves)
            return replace(node, child=child), after
