"""Which requests are a stream, and how far ahead it is decoded."""

import random

from brevisfs.archive import Kind, Section
from brevisfs.fs._readahead import REQUEST, Stream, Streams

MOST = 8 << 20
TENSOR = 5_000_000
HEADER = 1000


def section_at(offset: int) -> Section:
    """A header, and then tensors of one size."""
    if offset < HEADER:
        return Section(0, Kind.HEADER, 0, 0, 8, HEADER, 1 << 17, 0, 0, 0)
    index = (offset - HEADER) // TENSOR
    begin = HEADER + index * TENSOR
    return Section(index + 1, Kind.TENSOR, 0, begin, 8, TENSOR, 1 << 17, 0, 0, 0)


def follow(streams: Streams, begin: int, size: int, key: str = "file") -> Stream:
    return streams.follow(key, begin, begin + size, section_at)


def far(stream: Stream) -> int:
    return stream.target(MOST) - stream.next


def test_the_further_a_reader_has_come_the_further_ahead() -> None:
    streams = Streams()
    begin = 3_000_000 // 4096 * 4096
    distances = [far(follow(streams, begin + step * REQUEST, REQUEST)) for step in range(12)]
    assert distances[0] == 0
    assert distances[1] == 2 * REQUEST
    assert distances == sorted(distances)
    assert distances[-1] == MOST


def test_small_requests_in_order_are_a_stream_too() -> None:
    streams = Streams()
    for step in range(100):
        stream = follow(streams, 4096 * (700 + 32 * step), 32 * 4096)
    assert far(stream) == MOST


def test_requests_that_overtake_each_other() -> None:
    streams = Streams()
    order = [0, 2, 1, 4, 3, 6, 5]
    seen = {id(follow(streams, 6 * REQUEST + step * REQUEST, REQUEST)) for step in order}
    assert len(seen) == 1


def test_the_beginning_of_a_tensor_is_the_beginning_of_all_of_it() -> None:
    for begin in (0, (HEADER + TENSOR) // 4096 * 4096, (HEADER + TENSOR) // 4096 * 4096 + 4096):
        stream = follow(Streams(), begin, REQUEST)
        assert stream.target(MOST) == section_at(begin + 4096).end
    assert far(follow(Streams(), 0, 4096)) == 0
    assert follow(Streams(), 0, REQUEST).target(2 * REQUEST) == 3 * REQUEST


def test_readers_side_by_side() -> None:
    streams = Streams()
    places = [500_000 + reader * 20_000_000 for reader in range(10)]
    for step in range(10):
        found = [follow(streams, place + step * REQUEST, REQUEST) for place in places]
    assert len({id(stream) for stream in found}) == len(places)
    assert all(far(stream) == MOST for stream in found)


def test_reads_here_and_there_are_forgotten_and_a_reader_is_not() -> None:
    streams = Streams()
    chance = random.Random(0)
    for step in range(200):
        reader = follow(streams, step * REQUEST, REQUEST)
        for _ in range(3):
            lost = follow(streams, chance.randrange(10**9, 10**12) // 4096 * 4096, 4096)
            assert far(lost) == 0
            surplus = streams.surplus()
            if surplus is not None:
                assert surplus is not reader
                streams.forget(surplus)
    assert far(reader) == MOST
    assert reader not in list(streams.idle())
    assert streams.surplus() is None


def test_a_reader_that_stops_is_idle() -> None:
    streams = Streams()
    stopped = follow(streams, 0, REQUEST, "stopped")
    for step in range(200):
        follow(streams, step * REQUEST, REQUEST, "going on")
    assert list(streams.idle()) == [stopped]


def test_files_that_were_read_long_ago_are_forgotten() -> None:
    streams = Streams()
    for number in range(1000):
        follow(streams, 0, 4096, str(number))
        if (surplus := streams.surplus()) is not None:
            assert surplus.key == str(number - 256)
            streams.forget(surplus)
    assert streams.surplus() is None
