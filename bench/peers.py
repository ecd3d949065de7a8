"""Other compressors of the same bytes, where they are installed. They allocate what they return."""

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.coded import WrongBytes
from bench.measure import Action, Bytes, Job, Pair

Coder = Callable[[bytes], Any]

ZSTD_LEVEL = 3
_ZIPNN_NAMES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


@dataclass(frozen=True)
class Peer:
    """A compressor with one thread and with two."""

    name: str
    compress: tuple[Coder, Coder]
    decompress: tuple[Coder, Coder]


def peers(dtype: str, pair: Pair) -> Iterator[Peer]:
    """Those that are installed and take the dtype."""
    if (zipnn := _module("zipnn")) and (name := _ZIPNN_NAMES.get(dtype)):
        one, two = (
            zipnn.ZipNN(bytearray_dtype=name, input_format="byte", threads=threads) for threads in (1, 2)
        )
        yield Peer("zipnn", (one.compress, two.compress), (one.decompress, two.decompress))
    if zstd := _module("zstandard"):
        yield _zstd(zstd, pair)


def _zstd(zstd: Any, pair: Pair) -> Peer:
    def compress(data: bytes) -> Any:
        return zstd.ZstdCompressor(level=ZSTD_LEVEL).compress(data)

    def decompress(data: bytes) -> Any:
        return zstd.ZstdDecompressor().decompress(data)

    def compress_two(data: bytes) -> list[Any]:
        half = len(data) // 2
        with memoryview(data) as view:
            return _both(pair, compress, [view[:half], view[half:]])

    def decompress_two(frames: Any) -> list[Any]:
        return _both(pair, decompress, frames)

    return Peer(f"zstd -{ZSTD_LEVEL}", (compress, compress_two), (decompress, decompress_two))


def _both(pair: Pair, function: Coder, parts: Any) -> list[Any]:
    made: list[Any] = [None, None]

    def work(index: int) -> None:
        made[index] = function(parts[index])

    pair.both(lambda: work(0), lambda: work(1))()
    return made


def contest(peer: Peer, data: Bytes, copies: tuple[Action, Action]) -> tuple[dict[str, Job], int]:
    """Jobs decode, decode two, encode, encode two; and the bytes it stores. Raises WrongBytes."""
    jobs: dict[str, Job] = {}
    stored = 0
    for threads, suffix in enumerate(("", " two")):
        packed = peer.compress[threads](data.tobytes())
        if not threads:
            stored = len(packed)
        decode = _Call(peer.decompress[threads], partial(_same, packed))
        encode = _Call(peer.compress[threads], data.tobytes)
        jobs["decode" + suffix] = Job(copies[threads], decode.run, decode.prepare, decode.judge(peer, data))
        jobs["encode" + suffix] = Job(copies[threads], encode.run, encode.prepare)
    return jobs, stored


class _Call:
    """One call to time. Its input is made anew each time, because zipnn writes into what it is given."""

    def __init__(self, function: Coder, source: Callable[[], Any]) -> None:
        self._function, self._source = function, source
        self._input: Any = None
        self._output: Any = None

    def prepare(self) -> None:
        self._input, self._output = self._source(), None

    def run(self) -> None:
        self._output = self._function(self._input)

    def judge(self, peer: Peer, data: Bytes) -> Action:
        def after() -> None:
            made = self._output if isinstance(self._output, list) else [self._output]
            if b"".join(made) != data.tobytes():
                raise WrongBytes(f"{peer.name} does not give back its input")

        return after


def _same(value: Any) -> Any:
    return value


def _module(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its imports' own
            return importlib.import_module(name)
    except ImportError:
        return None
