"""Which readers go through a file in order, and what they will need next.

The kernel tells no reader from another: requests of one file come from any number of handles, mappings and
threads. A *stream* is a run of requests each of which begins about where another ended. It is read ahead
for once it has gone on for a while, or at once if it begins where a tensor does and takes much of it; the
further it has come, the further ahead. Requests that begin anywhere and go on nowhere cost nothing but a
place in a short list.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from brevisfs.archive import Section

REQUEST = 1024 * 1024
"""The largest request of the kernel, in bytes."""

WINDOW = 2 * 1024 * 1024
"""What is decoded ahead in one piece: large enough that the blocks at its ends, which are decoded for
their neighbours too, do not matter."""

# A read of 1 MiB that does not begin at a page takes two requests.
_ONE_READ = REQUEST + 4096
_WHOLE = 128 * 1024
_PAGE = 4096
_STREAMS, _FILES = 16, 256
_IDLE = 128


@dataclass(slots=True, eq=False)
class Stream:
    """One reader's way through the file `key`.

    It has read up to `next`, `run` bytes in a row; what it needs is being decoded up to `ahead`. `until` is
    the end of the tensor that it began with, 0 if it began elsewhere. `used` tells when it went on last.
    """

    key: Hashable
    next: int
    run: int
    ahead: int
    until: int
    used: int = 0

    def target(self, most: int) -> int:
        """Up to where to decode now, at most `most` bytes ahead."""
        far = min(self.run, most) if self.run > _ONE_READ else 0
        return max(self.next + far, min(self.until, self.next + most))


class Streams:
    """The streams of all files; the file that was read last is the last, and so is its stream."""

    def __init__(self) -> None:
        self._files: OrderedDict[Hashable, list[Stream]] = OrderedDict()
        self._now = 0

    def follow(self, key: Hashable, begin: int, end: int, section_at: Callable[[int], Section]) -> Stream:
        """The stream that a request for [begin, end) belongs to, which may be a new one.

        `section_at` gives the section around an offset.
        """
        self._now += 1
        streams = self._files.setdefault(key, [])
        self._files.move_to_end(key)
        for stream in streams:
            # It can be the reader's next request, or one that the next overtook.
            if -2 * REQUEST <= begin - stream.next <= REQUEST:
                streams.remove(stream)
                break
        else:
            until = 0
            if end - begin >= _WHOLE:
                section = section_at(min(begin + _PAGE, end) - 1)
                until = section.end if section.offset >= begin - _PAGE else 0
            stream = Stream(key, begin, 0, begin, until)
        streams.append(stream)
        gone = max(0, end - stream.next)
        stream.run += min(gone, end - begin)
        stream.next += gone
        stream.ahead = max(stream.ahead, stream.next)
        stream.used = self._now
        return stream

    def idle(self) -> Iterator[Stream]:
        """Those that have not gone on while many others did, the longest idle file first."""
        for streams in self._files.values():
            yield from (stream for stream in streams if self._now - stream.used > _IDLE)

    def surplus(self) -> Stream | None:
        """A stream to forget, if there are too many; rather one that was a single request."""
        streams = next(reversed(self._files.values()))
        if len(streams) <= _STREAMS:
            if len(self._files) <= _FILES:
                return None
            streams = next(iter(self._files.values()))
        return next((stream for stream in streams if stream.run <= _ONE_READ), streams[0])

    def forget(self, stream: Stream) -> None:
        """Forgets a stream."""
        streams = self._files[stream.key]
        streams.remove(stream)
        if not streams:
            del self._files[stream.key]
