"""The strict parser agrees with the safetensors package, and refuses everything else by reason."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from brevisfs.errors import ExitCode
from brevisfs.safetensors import Layout, NotSafetensors, Tensor, parse, word_bits

DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


def deserialize(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    result: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    return result


def parsed(data: bytes) -> Layout:
    return parse(len(data), lambda offset, length: data[offset : offset + length])


def reason(data: bytes) -> str:
    with pytest.raises(NotSafetensors) as caught:
        parsed(data)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def file(header: object, body: bytes = b"", pad: str = "") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)) + pad
    raw = text.encode("utf-8", "surrogateescape")
    return len(raw).to_bytes(8, "little") + raw + body


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


EMPTY = json.dumps(entry("U8", [0], 0, 0))
EMPTY_AT_3 = entry("U8", [0], 3, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_its_bits_and_needs_its_bytes(dtype: str) -> None:
    bits = DTYPES[dtype]
    assert word_bits(dtype) == bits
    size = 8 * bits // 8
    good = file({"t": entry(dtype, [2, 4], 0, size)}, bytes(size))
    start = len(good) - size
    assert parsed(good) == Layout(start, [Tensor("t", dtype, (2, 4), start, start + size)])
    bad = file({"t": entry(dtype, [2, 4], 0, size + 1)}, bytes(size + 1))
    assert f"has {size + 1} bytes, its dtype and shape ask for {size}" in reason(bad)


def test_there_are_22_dtypes() -> None:
    assert len(DTYPES) == 22
    assert word_bits("F8_NEW") is None


def test_a_file_of_the_package(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 5), dtype=np.float16),
        "flags": np.array([True, False, True]),
        "z": np.array([1 + 2j], dtype=np.complex64),
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np", "note": "é \n"})
    data = path.read_bytes()
    layout = parsed(data)
    assert {tensor.name for tensor in layout.tensors} == set(arrays)
    for tensor in layout.tensors:
        array = arrays[tensor.name]
        assert tensor.shape == array.shape
        assert data[tensor.begin : tensor.end] == array.tobytes()
    assert layout.header_length == 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize(
    "data",
    [
        file("{}"),
        file("{}", pad=" " * 6),
        file('{"__metadata__": {"a": "b"}}', pad="   "),
        file('{"__metadata__": null}'),
        file({"s": entry("F32", [], 0, 4)}, bytes(4)),
        file({"a": entry("F32", [0], 0, 0), "b": entry("U8", [3, 0, 2], 0, 0)}),
        file({"b": entry("U8", [3], 2, 5), "a": entry("U8", [2], 0, 2)}, bytes(5)),
        file({"b": entry("U8", [3], 0, 3), "a": entry("U8", [0], 0, 0), "c": EMPTY_AT_3}, bytes(3)),
        file({"": entry("F4", [2, 3], 0, 3), "é": entry("F6_E2M3", [4], 3, 6)}, bytes(6)),
        file({"t": {**entry("U8", [1], 0, 1), "extra": 3}}, bytes(1)),
        file({"t": entry("U8", [0, 2**63, 4], 0, 0)}),
    ],
)
def test_valid_files_agree_with_the_package(data: bytes) -> None:
    layout = parsed(data)
    theirs = deserialize(data)
    assert {(t.name, t.dtype, t.shape, data[t.begin : t.end]) for t in layout.tensors} == {
        (name, info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in theirs
    }
    ends = [layout.header_length, *(t.end for t in layout.tensors)]
    assert [t.begin for t in layout.tensors] == ends[:-1]
    assert ends[-1] == len(data)


def test_an_unknown_dtype_is_as_long_as_its_offsets_say() -> None:
    layout = parsed(file({"t": entry("F5_NEW", [7, 9], 0, 11), "u": entry("U8", [1], 11, 12)}, bytes(12)))
    assert [(t.dtype, t.end - t.begin) for t in layout.tensors] == [("F5_NEW", 11), ("U8", 1)]


BAD_HEADERS = {
    "empty list": ("[]", "does not begin with '{'"),
    "leading space": (" {}", "does not begin with '{'"),
    "byte order mark": ("\ufeff{}", "does not begin with '{'"),
    "cut": ('{"a": {"dtype": "U8"', "not valid JSON"),
    "rest": ("{} x", "not valid JSON"),
    "nul padding": ("{}\0\0", "not valid JSON"),
    "raw newline": ('{"a\n": 1}', "not valid JSON"),
    "NaN": ('{"a": NaN}', "not valid JSON: NaN"),
    "not UTF-8": ('{"a\udcff": 1}', "not UTF-8"),
    "deep": ('{"a": ' + "[" * 100_000, "nested too deeply"),
    "long number": ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    "same tensor twice": (f'{{"a": {EMPTY}, "\\u0061": {EMPTY}}}', "key 'a' twice"),
    "same field twice": ('{"a": {"dtype": "U8", "dtype": "U8"}}', "key 'dtype' twice"),
    "metadata twice": ('{"__metadata__": {}, "__metadata__": {}}', "key '__metadata__' twice"),
    "metadata list": ('{"__metadata__": []}', "__metadata__ is not an object"),
    "metadata number": ('{"__metadata__": {"a": 1}}', "__metadata__ 'a' is not a string"),
    "half a surrogate": (f'{{"\\ud800": {EMPTY}}}', "is not Unicode text"),
    "tensor null": ('{"a": null}', "tensor 'a' is not an object"),
    "no dtype": ('{"a": {"shape": [0], "data_offsets": [0, 0]}}', "tensor 'a' has no dtype"),
    "no shape": ('{"a": {"dtype": "U8", "data_offsets": [0, 0]}}', "the shape of tensor 'a' is not a list"),
    "no offsets": ('{"a": {"dtype": "U8", "shape": [0]}}', "data_offsets of tensor 'a' is not a list"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_bad_headers(what: str) -> None:
    header, why = BAD_HEADERS[what]
    assert why in reason(file(header))


BAD_TENSORS: dict[str, tuple[dict[str, Any], int, str]] = {
    "negative": ({"a": entry("U8", [-1], 0, 0)}, 0, "has -1, which is not an unsigned"),
    "float": ({"a": entry("U8", [1.0], 0, 1)}, 1, "has 1.0, which is not an unsigned"),
    "bool": ({"a": entry("U8", [True], 0, 1)}, 1, "has True, which is not an unsigned"),
    "text": ({"a": entry("U8", ["1"], 0, 1)}, 1, "has '1', which is not an unsigned"),
    "above 64 bits": ({"a": entry("U8", [1], 0, 2**64)}, 1, "not an unsigned 64-bit"),
    "three offsets": ({"a": {**entry("U8", [1], 0, 1), "data_offsets": [0, 1, 1]}}, 1, "not a begin and"),
    "backwards": ({"a": entry("X", [1], 4, 2)}, 4, "not a begin and an end"),
    "overflow": ({"a": entry("U8", [2**63, 2], 0, 0)}, 0, "overflows"),
    "overflow before 0": ({"a": entry("U8", [2**63, 2, 0], 0, 0)}, 0, "overflows"),
    "overflow in bits": ({"a": entry("F64", [2**58], 0, 0)}, 0, "overflows"),
    "half a byte": ({"a": entry("F4", [3], 0, 2)}, 2, "does not fill whole bytes"),
    "three quarters": ({"a": entry("F6_E3M2", [1], 0, 1)}, 1, "does not fill whole bytes"),
    "hole at 0": ({"a": entry("U8", [1], 1, 2)}, 2, "a hole before tensor 'a'"),
    "hole": ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, 3, "a hole before tensor 'b'"),
    "overlap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3, "an overlap at tensor 'b'"),
    "bytes after": ({"a": entry("U8", [1], 0, 1)}, 2, "the tensors end at byte"),
    "bytes missing": ({"a": entry("U8", [4], 0, 4)}, 3, "the tensors end at byte"),
    "bytes, no tensor": ({}, 1, "the tensors end at byte"),
    "long name": ({"n" * 10_000: entry("U8", [1], 1, 2)}, 2, "nnn..."),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_TENSORS)
def test_bad_tensors_are_refused_as_by_the_package(what: str) -> None:
    header, body, why = BAD_TENSORS[what]
    data = file(header, bytes(body))
    text = reason(data)
    assert why in text
    assert len(text) < 250
    with pytest.raises(safetensors.SafetensorError):
        deserialize(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes are too few"),
        (bytes(8), "8 bytes are too few"),
        (bytes(9), "does not begin with '{'"),
        ((100_000_001).to_bytes(8, "little") + b"{", "is above 100000000"),
        ((2**64 - 1).to_bytes(8, "little") + b"{", "is above 100000000"),
        ((3).to_bytes(8, "little") + b"{}", "passes the end of the file"),
        (bytes.fromhex("8942525600000000") + b"{}" * 40, "is above 100000000"),
    ],
)
def test_bad_lengths(data: bytes, why: str) -> None:
    assert why in reason(data)


def test_a_wrong_length_reads_nothing_large() -> None:
    asked: list[int] = []

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        return (99_999_999).to_bytes(8, "little") + b"x" if offset == 0 else b"x"

    with pytest.raises(NotSafetensors):
        parse(2**40, read)
    assert sum(asked) <= 9 + 8


def test_a_file_that_shrinks_while_it_is_read() -> None:
    data = file({"a": entry("U8", [1], 0, 1)}, b"x")
    with pytest.raises(NotSafetensors, match="could be read at 8"):
        parse(len(data), lambda offset, length: data[offset : min(offset + length, 20)])


def test_the_longest_header_is_allowed() -> None:
    pad = 100_000_000 - 2
    data = file("{}", pad=" " * pad)
    assert parsed(data).header_length == 100_000_008
    assert "is above" in reason(file("{}", pad=" " * (pad + 1)))


def test_exit_code() -> None:
    assert NotSafetensors("x").exit_code is ExitCode.NOT_SAFETENSORS


def _damaged() -> Iterator[bytes]:
    header = {"a": entry("F32", [2], 0, 8), "__metadata__": {"k": "v"}, "b": entry("U8", [3], 8, 11)}
    whole = file(header, bytes(11))
    yield from (whole[:cut] for cut in range(len(whole)))
    for at in range(len(whole)):
        for bit in (1, 32):
            yield whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]


def test_whatever_we_accept_the_package_reads_the_same_way() -> None:
    for data in _damaged():
        try:
            layout = parsed(data)
        except NotSafetensors:
            continue
        if all(word_bits(tensor.dtype) for tensor in layout.tensors):
            theirs = {name: bytes(info["data"]) for name, info in deserialize(data)}
            assert {t.name: data[t.begin : t.end] for t in layout.tensors} == theirs


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_give_a_layout_or_a_reason(data: bytes, framed: bool) -> None:
    if framed:
        data = (len(data) + 1).to_bytes(8, "little") + b"{" + data
    try:
        assert parsed(data).header_length <= len(data)
    except NotSafetensors as error:
        assert error.reason
