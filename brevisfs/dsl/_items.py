"""To which nodes of a program the bytes of its payloads and shared parts belong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brevisfs.dsl._cursor import Cursor
from brevisfs.dsl._program import Huffman, Lit, Node, Pack, Rans, Raw, Repeat, Scan, Tunstall, walk


def payload_bytes(
    node: Node, bits: int, count: int, words: Callable[[int], int], payload: bytes
) -> dict[int, int]:
    """The bytes of a block's payload, by the prefix index of the node whose item they are.

    `words` tells how many words the node of an index has in the block. Raises Malformed.
    """
    found = {}
    cursor = Cursor(payload)
    for index, inner, width in _outside_repeats(node, bits, count):
        if isinstance(inner, Lit | Scan):
            before, length = cursor.left, words(index)
            if length:
                _skip(cursor, inner, width, length)
            found[index] = before - cursor.left
    cursor.end()
    return found


def shared_bytes(node: Node, bits: int, count: int, shared: bytes) -> dict[int, int]:
    """The bytes of the shared parts, by the prefix index of the node whose they are. Raises Malformed."""
    found = {}
    cursor = Cursor(shared)
    for index, _, inner, _, _ in walk(node, bits, count):
        if isinstance(inner, Repeat) or (
            isinstance(inner, Lit) and isinstance(inner.encoding, Huffman | Rans | Tunstall)
        ):
            before = cursor.left
            cursor.item()
            found[index] = before - cursor.left
    cursor.end()
    return found


def _outside_repeats(node: Node, bits: int, count: int) -> Iterator[tuple[int, Node, int]]:
    """Prefix index, node and bits of a word for the nodes that blocks evaluate."""
    aside: int | None = None
    for index, depth, inner, width, _ in walk(node, bits, count):
        if aside is None or depth <= aside:
            aside = depth if isinstance(inner, Repeat) else None
            yield index, inner, width


def _skip(cursor: Cursor, node: Lit | Scan, bits: int, count: int) -> None:
    match node:
        case Scan():
            cursor.take((bits + 7) // 8)
        case Lit(Raw()):
            cursor.take(_sliced(bits, count))
        case Lit(Pack(packed)):
            cursor.take(_sliced(packed, count))
        case _:
            cursor.item()


def _sliced(bits: int, count: int) -> int:
    """Bytes of `count` words of `bits` bits in sliced form."""
    whole, rest = divmod(count, 256)
    narrow = [size for size in (1, 2, 4) if bits & size]
    return (bits >> 3) * count + sum(whole * 32 * size + (rest * size + 7) // 8 for size in narrow)
