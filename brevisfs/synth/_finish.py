"""From a program found on samples to one that holds for all of the data, with its shared parts.

One native pass over all blocks counts the words of every narrow leaf, and completes it anew from
what all words are: symbols that no sample had are in the tables, and a Const or pack that does not
hold gives way to what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
    Transpose,
    Zstd,
    children,
    to_wire,
    walk,
)
from brevisfs.synth import _classes, _literal
from brevisfs.synth._costs import Histogram
from brevisfs.synth._literal import NODE_BYTES, Choice, Extent
from brevisfs.synth._profile import Settings
from brevisfs.synth._source import Part

RARE = 0.02
"""Share of exceptions up to which a wide Const becomes sparse instead of raw."""


CLASSED_WORDS = 1 << 15
"""Words from which several tables are looked at."""

LEARN_WORDS = 1 << 21
"""Words that classes of segments are learnt from."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that holds for all of the words, its shared parts, bytes and rank, zstd's not counted.

    `classes` has the class of each segment of the leaves with several tables, by prefix index.
    """

    node: Node
    shared: tuple[bytes, ...]
    size: float
    rank: float
    classes: dict[int, NDArray[np.uint8]]


def finish(part: Part, node: Node, shape: tuple[int, ...], settings: Settings) -> Finished:
    """The program `node` fitted to all of the words of the part, whose rows are those of `shape`."""
    if isinstance(node, Repeat):
        return _finish_repeat(part, node, shape, settings)
    leaves = _count_leaves(part, node, settings)
    choices = {index: leaf.completed(settings) for index, leaf in leaves.items()}
    passes = _Passes(part, node)
    classings = {}
    for index, leaf in leaves.items():
        found = _classing(passes, index, leaf, choices[index], shape, settings)
        if found is not None:
            choices[index], classings[index] = found
    done, _ = _rebuilt(node, 0, choices)
    shared = []
    for index, leaf in leaves.items():
        hists = classings[index].hists if index in classings else leaf.hist
        match choices[index].node:
            case Lit(Huffman(max_length=max_length)):
                shared.append(huffman_tables(hists, max_length))
            case Lit(Rans(prob_bits=prob_bits)):
                shared.append(rans_tables(hists, prob_bits))
    size = _inner_bytes(part, node) + sum(choice.size for choice in choices.values())
    rank = size + sum(choice.toll for choice in choices.values())
    classes = {index: found.classes for index, found in classings.items()}
    return Finished(done, tuple(shared), size, rank, classes)


def _finish_repeat(part: Part, node: Repeat, shape: tuple[int, ...], settings: Settings) -> Finished:
    # A Repeat's child is evaluated as one block.
    count = part.count // node.times
    period = replace(part, count=count, block=-(-count // 64) * 64)
    child = finish(period, node.child, shape, settings)
    shared = join_shared(child.shared)
    program = Program(to_wire(child.node), shared, part.bits, count, period.block, child.classes)
    payload = bytearray(program.encode_bound())
    length = program.encode_block(0, period.read(0, period.nbytes), payload)
    # The classes stand in the payload: none are left to be encoded with the blocks.
    parts = (bytes(payload[:length]), *child.shared)
    return Finished(
        Repeat(node.times, child.node), parts, child.size + NODE_BYTES, child.rank + NODE_BYTES, {}
    )


def _classing(
    passes: _Passes, index: int, leaf: _Leaf, choice: Choice, shape: tuple[int, ...], settings: Settings
) -> tuple[Choice, _classes.Classing] | None:
    """Several tables for a coded leaf, if they pay."""
    match choice.node:
        case Lit(Huffman() | Rans() as encoding) if leaf.extent.count >= CLASSED_WORDS:
            segment = _classes.segment_words(shape, leaf.extent.count)
        case _:
            return None

    def classed(hists: Histogram) -> Choice:
        coded = _literal.huffman if isinstance(encoding, Huffman) else _literal.rans
        several = segment if len(hists) > 1 else 0
        return coded(hists, leaf.bits, leaf.extent, settings, several)

    step = -(-leaf.extent.count // LEARN_WORDS)
    lengths = _classes.learn(passes.words(index, step), leaf.bits, segment, lambda hists: classed(hists).rank)
    if lengths is None:
        return None
    found = _classes.assign(passes.words(index, 1), leaf.bits, segment, lengths)
    fitted = classed(found.hists.astype(np.int64))
    return (fitted, found) if fitted.rank < choice.rank else None


class _Passes:
    """The words of a program's leaves, block by block."""

    def __init__(self, part: Part, node: Node) -> None:
        self._part = part
        self._analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
        self._scanned = _under_scan(node, part.bits, part.count)
        self._starts = _starts(node, part.bits, part.count)

    def words(self, index: int, step: int) -> Iterator[_classes.Placed]:
        """The words of a leaf in every step-th block, with the position of the first in its stream."""
        size = self._part.block
        for block in range(0, -(-self._part.count // size), step):
            words = self._analysis.words(block, self._part.block_bytes(block), index)
            if index in self._scanned and len(words) and (block + 1) * size < self._part.count:
                # No block has the change to the next block's first word: anything stands for it.
                words = np.append(words, words[-1])
            if len(words):
                yield max(0, block * size - self._starts[index]), words


def _inner_bytes(part: Part, node: Node) -> int:
    """What the nodes that are no leaves take: themselves, and a Scan its first words."""
    total = 0
    for _, _, inner, bits, count in walk(node, part.bits, part.count):
        if not isinstance(inner, Lit | Const):
            total += NODE_BYTES
        if isinstance(inner, Scan):
            total += Extent(count, part.block).blocks * ((bits + 7) // 8)
    return total


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


def _starts(node: Node, bits: int, count: int) -> dict[int, int]:
    """By prefix index, the word of the root's stream where each node's stream begins."""
    starts: dict[int, int] = {}
    ahead = [(0, node, bits, count)]
    while ahead:
        start, inner, bits, count = ahead.pop()
        starts[len(starts)] = start
        below = []
        for child, child_bits, child_count in children(inner, bits, count):
            below.append((start, child, child_bits, child_count))
            start += child_count if isinstance(inner, Concat) else 0
        ahead += reversed(below)
    return starts


def _under_scan(node: Node, bits: int, count: int) -> set[int]:
    """Prefix indexes of the nodes below a Scan."""
    below: set[int] = set()
    scan_depth: int | None = None
    for index, depth, inner, _, _ in walk(node, bits, count):
        if scan_depth is not None and depth <= scan_depth:
            scan_depth = None
        if scan_depth is not None:
            below.add(index)
        elif isinstance(inner, Scan):
            scan_depth = depth
    return below


def _count_leaves(part: Part, node: Node, settings: Settings) -> dict[int, _Leaf]:
    """Each leaf by prefix index, with all of its words taken in."""
    leaves = {
        index: _Leaf(leaf, bits, Extent(count, part.block), settings)
        for index, _, leaf, bits, count in walk(node, part.bits, part.count)
        if isinstance(leaf, Lit | Const)
    }
    wanted = [(index, leaf) for index, leaf in leaves.items() if leaf.narrow or isinstance(leaf.node, Const)]
    analysis = Analysis(to_wire(node), part.bits, part.count, part.block)
    for block in range(-(-part.count // part.block) if wanted else 0):
        data = part.block_bytes(block)
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
        case Repeat() | Map() | Scan() | Transpose():
            child, after = _rebuilt(node.child, index + 1, leaves)
            return replace(node, child=child), after
