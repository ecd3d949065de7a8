"""The inputs of native/fuzz/corpus, which fuzzers found, through the extension module."""

from pathlib import Path

import numpy as np
import pytest

from brevisfs import _native as native
from tests.native.inputs import TARGETS, FuzzInput

CORPUS = Path(__file__).parents[2] / "native" / "fuzz" / "corpus"
FILES = sorted(path for target in TARGETS for path in (CORPUS / target).iterdir())
GUARD = 64


def test_there_is_a_corpus_for_each_fuzzer() -> None:
    assert {path.parent.name for path in CORPUS.glob("*/*")} == {*TARGETS, "plan"}


def block_range(each: FuzzInput) -> tuple[int, int]:
    """Flat bytes of the chosen block."""
    lo = each.index() * each.block
    return lo * each.bits // 8, min(each.count, lo + each.block) * each.bits // 8


def decoded(each: FuzzInput, program: native.Program, payload: bytes) -> bytes | None:
    """The chosen block; None if it is refused."""
    lo, hi = block_range(each)
    out = np.full(hi - lo + GUARD, 0xA5, np.uint8)
    spans = np.array([[0, len(payload)]], np.uint64)
    try:
        program.decode(payload, each.index(), spans, None, out, lo, hi)
    except native.BlockDamaged:
        return None
    finally:
        assert (out[hi - lo :] == 0xA5).all(), "wrote past the range"
    return out[: hi - lo].tobytes()


def round_trip(each: FuzzInput, program: native.Program) -> bytes | None:
    """The payload of the chosen block made of the input's bytes, repeated; None if it is refused."""
    lo, hi = block_range(each)
    data = ((each.rest or b"\0") * (hi - lo))[: hi - lo]
    out = bytearray(program.encode_bound())
    try:
        payload = bytes(out[: program.encode_block(each.index(), data, out)])
    except native.NativeError:  # the program does not suit, or wants classes
        return None
    assert decoded(each, program, payload) == data
    return payload


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_is_refused_or_handled_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = FuzzInput.parse(path.read_bytes())
    results = []
    for cpu in ("", "avx2", "scalar"):
        monkeypatch.setenv("BREVISFS_CPU", cpu)
        try:
            program = native.Program(each.wire, each.shared, each.bits, each.count, each.block)
        except native.NativeError as error:
            results.append(str(error))
            continue
        if path.parent.name == "decode":
            results.append(repr(decoded(each, program, each.rest)))
        else:
            results.append(repr(round_trip(each, program)))
    assert len(set(results)) == 1
