"""All of an archive in order, decoded ahead by threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np

from brevisfs.archive._reader import Bytes, Reader

PIECE = 4 << 20
"""About how many bytes are decoded at a time: enough for a thread, little enough to stay in cache."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[int, Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """work(slot, item) of all items, by that many threads, in the order of the items.

    No two pieces of work have the same slot, 0 to `threads`, at the same time, and a result's slot is
    given out again only when the next result is asked for: so buffers can be kept by slot.
    """
    waiting: deque[Future[Result]] = deque()
    numbered = enumerate(items)
    pool = ThreadPoolExecutor(threads, "decode")
    try:
        for number, item in islice(numbered, threads):
            waiting.append(pool.submit(work, number, item))
        while waiting:
            # The result handed out last is done with by now, and its slot is the one that comes round.
            for number, item in islice(numbered, 1):
                waiting.append(pool.submit(work, number % (threads + 1), item))
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def decoded(reader: Reader, threads: int) -> Iterator[tuple[int, Bytes]]:
    """The original in order, as (offset, bytes); the bytes hold until the next ones are asked for.

    Raises what Reader.read_into raises.
    """
    buffers = Buffers(threads)

    def work(slot: int, piece: tuple[int, int]) -> tuple[int, Bytes]:
        begin, end = piece
        out = buffers.get(slot, end - begin)
        reader.read_into(begin, out)
        return begin, out

    return in_order(work, pieces(reader), threads)


class Buffers:
    """One buffer for each slot of `in_order`, used again and again: fresh pages cost more than decoding."""

    def __init__(self, threads: int) -> None:
        self._buffers = [np.empty(0, np.uint8) for _ in range(threads + 1)]

    def get(self, slot: int, size: int) -> Bytes:
        if len(self._buffers[slot]) < size:
            self._buffers[slot] = np.empty(size, np.uint8)
        return self._buffers[slot][:size]


def pieces(reader: Reader) -> Iterator[tuple[int, int]]:
    """The original cut into ranges of about PIECE bytes; large sections are cut between blocks."""
    begin = end = 0
    for section in reader.sections:
        if section.end - begin > PIECE and end > begin:
            yield begin, end
            begin = end
        step = max(1, PIECE // section.block_size) * section.block_size
        while section.end - begin > step:
            yield begin, begin + step
            begin += step
        end = section.end
    if end > begin:
        yield begin, end
