"""Tensors that are stored twice: found by a look at a few of their bytes, and then at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brevisfs.archive import Kind
from brevisfs.synth._sample import cuts as places
from brevisfs.synth._sections import SMALL_BYTES, Cut
from brevisfs.synth._source import Source

LOOKS, LOOK_BYTES = 8, 64
PIECE_BYTES = 1 << 20


def ties(cuts: Iterable[Cut], source: Callable[[Cut], Source]) -> dict[int, int]:
    """For each section that has the bytes of an earlier one, by number, the number of the first such.

    Tensors whose bytes look all the same are left out: they take no room anyway. Raises what reading raises.
    """
    known: dict[tuple[int, bytes], list[tuple[int, Cut]]] = {}
    found: dict[int, int] = {}
    for number, cut in enumerate(cuts):
        if cut.kind != Kind.TENSOR or cut.nbytes < SMALL_BYTES:
            continue
        own = source(cut)
        look = b"".join(bytes(own.read(at, at + LOOK_BYTES)) for at in places(cut.nbytes, LOOK_BYTES, LOOKS))
        if len(set(look)) == 1:
            continue
        alike = known.setdefault((cut.nbytes, look), [])
        first = next((target for target, other in alike if _equal(own, source(other))), None)
        if first is None:
            alike.append((number, cut))
        else:
            found[number] = first
    return found


def _equal(first: Source, second: Source) -> bool:
    """Whether two sources of the same length have the same bytes."""
    return all(
        first.read(lo, min(first.nbytes, lo + PIECE_BYTES))
        == second.read(lo, min(first.nbytes, lo + PIECE_BYTES))
        for lo in range(0, first.nbytes, PIECE_BYTES)
    )
