"""From the bytes of a safetensors file to where its tensors lie.

Strict on purpose: a file is taken for a model only if every reader in use would agree on what it
holds. Whoever asks treats anything else as plain bytes, so a refusal never loses data.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from brevisfs.errors import BrevisError, ExitCode

MAX_HEADER = 100_000_000
"""The longest JSON header, in bytes, that safetensors readers accept."""

_WORD_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

_LIMIT = 2**64
_SHOWN = 80


class NotSafetensors(BrevisError):
    """The bytes are not a complete, valid safetensors file; `reason` says what is wrong."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_SAFETENSORS

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a safetensors file: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its bytes are `begin` to `end` of the file (absolute, in bytes)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a safetensors file lies.

    `header_length` counts the 8-byte length and the JSON with its padding, so it is the offset of
    the first tensor byte. `tensors` are in the order of their bytes and tile the rest of the file.
    """

    header_length: int
    tensors: list[Tensor]


def word_bits(dtype: str) -> int | None:
    """Bits of one element of `dtype`, None for a dtype not known here."""
    return _WORD_BITS.get(dtype)


def parse(size: int, read: Callable[[int, int], bytes]) -> Layout:
    """The layout of a file of `size` bytes, of which `read(offset, length)` gives any part.

    Only the header is read. An unknown dtype is accepted with the bytes its offsets say.
    Raises NotSafetensors; whatever `read` raises passes through.
    """
    header = _header(size, read)
    try:
        # Decoded here, because json would guess other encodings and let half surrogates through.
        entries = json.loads(header.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise NotSafetensors(f"the header is not UTF-8 at its byte {error.start}") from None
    except RecursionError:
        raise NotSafetensors("the header is nested too deeply") from None
    except ValueError as error:
        raise NotSafetensors(f"the header is not valid JSON: {error}") from None
    _check_metadata(entries.pop("__metadata__", None))
    start = 8 + len(header)
    tensors = [_tensor(name, entry, start) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_tiling(tensors, start, size)
    return Layout(start, tensors)


def _header(size: int, read: Callable[[int, int], bytes]) -> bytes:
    # Nine bytes tell most other files apart before anything large is read.
    if size < 9:
        raise NotSafetensors(f"{size} bytes are too few for a header")
    length = int.from_bytes(_read(read, 0, 8), "little")
    if length > MAX_HEADER:
        raise NotSafetensors(f"header length {length} is above {MAX_HEADER}")
    if length > size - 8:
        raise NotSafetensors(f"header length {length} passes the end of the file ({size} bytes)")
    if length == 0 or _read(read, 8, 1) != b"{":
        raise NotSafetensors("the header does not begin with '{'")
    return _read(read, 8, length)


def _read(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    data = read(offset, length)
    if len(data) != length:
        raise NotSafetensors(f"only {len(data)} of {length} bytes could be read at {offset}")
    return bytes(data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotSafetensors(f"the header has the key {_show(key)} twice")
            seen.add(key)
    return result


def _constant(name: str) -> NoReturn:
    raise NotSafetensors(f"the header is not valid JSON: {name}")


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise NotSafetensors("__metadata__ is not an object")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise NotSafetensors(f"__metadata__ {_show(key)} is not a string")


def _tensor(name: str, entry: object, start: int) -> Tensor:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise NotSafetensors(f"the tensor name {_show(name)} is not Unicode text") from None
    if not isinstance(entry, dict):
        raise NotSafetensors(f"tensor {_show(name)} is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str):
        raise NotSafetensors(f"tensor {_show(name)} has no dtype")
    shape = _numbers(entry.get("shape"), f"the shape of tensor {_show(name)}")
    offsets = _numbers(entry.get("data_offsets"), f"data_offsets of tensor {_show(name)}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise NotSafetensors(f"data_offsets of tensor {_show(name)} are not a begin and an end")
    begin, end = offsets
    expected = _byte_length(name, dtype, shape)
    if expected is not None and end - begin != expected:
        raise NotSafetensors(
            f"tensor {_show(name)} has {end - begin} bytes, its dtype and shape ask for {expected}"
        )
    return Tensor(name, dtype, shape, start + begin, start + end)


def _numbers(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise NotSafetensors(f"{what} is not a list")
    for number in value:
        # bool is an int to Python, not to JSON
        if type(number) is not int or not 0 <= number < _LIMIT:
            raise NotSafetensors(f"{what} has {_show(number)}, which is not an unsigned 64-bit number")
    return tuple(value)


def _byte_length(name: str, dtype: str, shape: tuple[int, ...]) -> int | None:
    bits = word_bits(dtype)
    if bits is None:
        return None
    elements = 1
    for extent in shape:
        # In this order and on the way, as other readers do it: a later 0 does not mend an overflow.
        elements *= extent
        if elements >= _LIMIT:
            break
    if elements * bits >= _LIMIT:
        raise NotSafetensors(f"the shape of tensor {_show(name)} overflows 64 bits")
    if elements * bits % 8:
        raise NotSafetensors(f"tensor {_show(name)} of {dtype} does not fill whole bytes")
    return elements * bits // 8


def _check_tiling(tensors: list[Tensor], start: int, size: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            kind = "a hole before" if tensor.begin > position else "an overlap at"
            raise NotSafetensors(f"there is {kind} tensor {_show(tensor.name)}")
        position = tensor.end
    if position != size:
        raise NotSafetensors(f"the tensors end at byte {position}, the file at {size}")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
