"""The nodes a program is made of: plain immutable data, no rules (those are in `_check`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ScanKind = Literal["xor", "add"]


@dataclass(frozen=True, slots=True)
class Raw:
    """The words, sliced."""


@dataclass(frozen=True, slots=True)
class Pack:
    """word - base mod 2^b in `bits` bits each, fewer than the words have."""

    bits: int
    base: int = 0


@dataclass(frozen=True, slots=True)
class Huffman:
    """Canonical Huffman; with several tables, each run of `segment` words chooses one.

    With `columns` it chooses one for each class of places in it: a run has one of `rows` classes, a place
    one of `columns`, and each pair of them a table.
    """

    streams: int
    max_length: int
    tables: int = 1
    segment: int = 0
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Rans:
    """Interleaved rANS with probabilities of `prob_bits` bits; tables as for Huffman."""

    lanes: int
    prob_bits: int
    tables: int = 1
    segment: int = 0
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Zstd:
    """One zstd frame of the sliced words."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """The words that are not `base`, and where they are."""

    base: int = 0


@dataclass(frozen=True, slots=True)
class Tunstall:
    """Codewords of `bits` bits for strings of words; probabilities and tables as for rANS."""

    bits: int
    prob_bits: int
    tables: int = 1
    segment: int = 0
    rows: int = 0
    columns: int = 0


Coded = Huffman | Rans | Tunstall
Encoding = Raw | Pack | Coded | Zstd | Sparse


@dataclass(frozen=True, slots=True)
class Xor:
    """s = c ^ word."""

    word: int


@dataclass(frozen=True, slots=True)
class Add:
    """s = c + word mod 2^b."""

    word: int


@dataclass(frozen=True, slots=True)
class ZigZag:
    """s = (c >> 1) ^ -(c & 1): small c are the words near 0, of either sign."""


@dataclass(frozen=True, slots=True)
class Gray:
    """c = s ^ (s >> 1)."""


@dataclass(frozen=True, slots=True)
class BitReverse:
    """s is c with its bits in the opposite order."""


@dataclass(frozen=True, slots=True)
class RotR:
    """s is c rotated right by `places` bits."""

    places: int


Function = Xor | Add | ZigZag | Gray | BitReverse | RotR


@dataclass(frozen=True, slots=True)
class Lit:
    """Words stored in one encoding."""

    encoding: Encoding


@dataclass(frozen=True, slots=True)
class Const:
    """One word, n times."""

    word: int


@dataclass(frozen=True, slots=True)
class Concat:
    """Neighbours joined; child i is `lengths[i]` words long."""

    lengths: tuple[int, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The child's stream, `times` times."""

    times: int
    child: Node


@dataclass(frozen=True, slots=True)
class Map:
    """A bijection of words, word by word."""

    function: Function
    child: Node


@dataclass(frozen=True, slots=True)
class Scan:
    """A first word, then the changes from each word to the next."""

    kind: ScanKind
    child: Node


@dataclass(frozen=True, slots=True)
class Merge:
    """Children side by side in each word, the first in the most significant bits."""

    widths: tuple[int, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """The words of each block, as a tile of rows of `columns` words, column by column."""

    columns: int
    child: Node


@dataclass(frozen=True, slots=True)
class Palette:
    """Each word is one of `words`, which ascend; the child says which, by its place among them."""

    words: tuple[int, ...]
    child: Node


@dataclass(frozen=True, slots=True)
class Select:
    """Where the mask is 1 the child's next word, elsewhere `word`. In each block the child starts anew."""

    word: int
    mask: Node
    child: Node


Node = Lit | Const | Concat | Repeat | Map | Scan | Merge | Palette | Select | Transpose


def index_bits(size: int) -> int:
    """Bits of a number below `size`."""
    return (size - 1).bit_length()


def children(node: Node, bits: int, count: int) -> list[tuple[Node, int, int]]:
    """The children of a node of type bits[count], each with its own bits and count."""
    match node:
        case Concat(lengths, parts):
            return [(part, bits, length) for part, length in zip(parts, lengths, strict=True)]
        case Merge(widths, parts):
            return [(part, width, count) for part, width in zip(parts, widths, strict=True)]
        case Repeat(times, child):
            return [(child, bits, count // times)]
        case Map(_, child) | Transpose(_, child):
            return [(child, bits, count)]
        case Scan(_, child):
            return [(child, bits, count - 1)]
        case Palette(words, child):
            return [(child, index_bits(len(words)), count)]
        case Select(_, mask, child):
            return [(mask, 1, count), (child, bits, count)]
        case _:
            return []


def walk(node: Node, bits: int, count: int) -> Iterator[tuple[int, int, Node, int, int]]:
    """(index, depth, node, bits, count) of each node of a checked program of type bits[count].

    In prefix order, which is the order of `index`; the root has index 0 and depth 0.
    """
    stack = [(0, node, bits, count)]
    index = 0
    while stack:
        depth, node, bits, count = stack.pop()
        yield index, depth, node, bits, count
        index += 1
        stack += [(depth + 1, *child) for child in reversed(children(node, bits, count))]
