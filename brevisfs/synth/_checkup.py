"""What the words of a tensor reveal about its weights: exactly, from all of them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from brevisfs._native import Checksum, checksum
from brevisfs.synth._plan import word_bits
from brevisfs.synth._sample import Words, from_flat
from brevisfs.synth._source import Source

PASS_BYTES = 1 << 22
ROW_BYTES = 32
"""Rows shorter than this are not compared: equal ones are mostly chance."""

FEW_VALUES = 1024
SPARSE = 0.05
"""Share of zeros from which a tensor is told to be sparse."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Bits of a float's exponent and mantissa, and its largest finite magnitude as a word."""

    exponent: int
    mantissa: int
    largest: int


FLOATS = {
    "F64": Layout(11, 52, 0x7FEF_FFFF_FFFF_FFFF),
    "F32": Layout(8, 23, 0x7F7F_FFFF),
    "C64": Layout(8, 23, 0x7F7F_FFFF),
    "F16": Layout(5, 10, 0x7BFF),
    "BF16": Layout(8, 7, 0x7F7F),
    "F8_E5M2": Layout(5, 2, 0x7B),
    "F8_E4M3": Layout(4, 3, 0x7E),
}
SIGNED = frozenset({"I8", "I16", "I32", "I64"})
UNSIGNED = frozenset({"U8", "U16", "U32", "U64"})


@dataclass(frozen=True, slots=True)
class Traits:
    """What all words of a tensor show. `varying` are the bits that are not the same in all of them.

    `zeros` are words that are zero, of either sign; `largest` those at the end of what the dtype can
    hold, `special` infinities and NaNs. `constant_rows` hold one word each, `repeated_rows` are equal to
    an earlier row that is not constant. `narrower` names a dtype that holds the same values, `distinct`
    is the number of different words if there are FEW_VALUES at most. `digest` is for comparing tensors.
    """

    words: int
    rows: int
    varying: int
    zeros: int
    largest: int
    special: int
    constant_rows: int
    repeated_rows: int
    narrower: str | None
    distinct: int | None
    digest: int


def examine(source: Source, dtype: str, shape: Sequence[int]) -> Traits:
    """The traits of a tensor of at least one byte. Raises what reading raises."""
    bits = word_bits(dtype, source.nbytes)
    rows = shape[0] if len(shape) > 1 and prod(shape) * bits == 8 * source.nbytes else 0
    row_bytes = source.nbytes // rows if rows else 0
    if row_bytes < ROW_BYTES:
        rows, row_bytes = 0, bits if bits % 8 else bits // 8
    tally = _Tally(dtype, bits)
    digest = Checksum()
    for data in _pieces(source, row_bytes):
        digest.update(data)
        words = from_flat(data, bits)
        tally.add(words)
        if rows:
            tally.add_rows(words.reshape(-1, len(words) * row_bytes // len(data)))
    return tally.traits(rows, digest.value)


def _pieces(source: Source, unit: int) -> Iterator[bytes]:
    """The bytes, some whole units at a time; a unit of more than PASS_BYTES is one piece."""
    step = max(1, PASS_BYTES // unit) * unit
    for lo in range(0, source.nbytes, step):
        yield bytes(source.read(lo, min(source.nbytes, lo + step)))


class _Tally:
    """What the words met so far show."""

    def __init__(self, dtype: str, bits: int) -> None:
        self._dtype, self._bits, self._layout = dtype, bits, FLOATS.get(dtype)
        self._words = self._zeros = self._largest = self._special = 0
        self._any, self._all = 0, (1 << bits) - 1
        self._lowest, self._highest = np.inf, -np.inf
        self._narrower = _narrower(dtype)
        self._values: set[int] | None = set()
        self._constant_rows = self._repeated_rows = 0
        self._seen: set[int] = set()

    def add(self, words: Words) -> None:
        self._words += len(words)
        self._any |= int(np.bitwise_or.reduce(words))
        self._all &= int(np.bitwise_and.reduce(words))
        if self._values is not None:
            # The first words tell most tensors of many values, without the long way through all of them.
            for some in (words[: 8 * FEW_VALUES], words):
                if self._values is not None:
                    self._values.update(np.unique(some)[: FEW_VALUES + 1].tolist())
                    if len(self._values) > FEW_VALUES:
                        self._values = None
        kind = words.dtype.type
        if self._layout is not None:
            magnitudes = words & kind((1 << self._bits - 1) - 1)
            self._zeros += int(np.count_nonzero(magnitudes == 0))
            self._largest += int(np.count_nonzero(magnitudes == kind(self._layout.largest)))
            self._special += int(np.count_nonzero(magnitudes > kind(self._layout.largest)))
            self._narrower = [name for name in self._narrower if _holds(name, words, self._dtype)]
        else:
            self._zeros += int(np.count_nonzero(words == 0))
        if self._dtype in SIGNED | UNSIGNED:
            numbers = words.view(words.dtype.str.replace("u", "i")) if self._dtype in SIGNED else words
            limits = np.iinfo(numbers.dtype)
            ends = [limits.max] if self._dtype in UNSIGNED else [limits.min, limits.max]
            self._largest += int(np.count_nonzero(np.isin(numbers, ends)))
            self._lowest = min(self._lowest, int(numbers.min()))
            self._highest = max(self._highest, int(numbers.max()))

    def add_rows(self, rows: Words) -> None:
        still = (rows == rows[:, :1]).all(axis=1)
        self._constant_rows += int(np.count_nonzero(still))
        for row in rows[~still]:
            check = checksum(row)
            self._repeated_rows += check in self._seen
            self._seen.add(check)

    def traits(self, rows: int, digest: int) -> Traits:
        narrower = self._narrower[0] if self._narrower else None
        if self._dtype in SIGNED | UNSIGNED:
            narrower = _integer(self._dtype, self._bits, self._lowest, self._highest)
        return Traits(
            self._words,
            rows,
            self._any & ~self._all,
            self._zeros,
            self._largest,
            self._special,
            self._constant_rows,
            self._repeated_rows,
            narrower,
            None if self._values is None else len(self._values),
            digest,
        )


def _narrower(dtype: str) -> list[str]:
    """Floats that might hold the same values, the narrowest first."""
    return {"F64": ["BF16", "F16", "F32"], "F32": ["BF16", "F16"]}.get(dtype, [])


def _holds(name: str, words: Words, dtype: str) -> bool:
    """Whether a narrower float holds each of the words exactly."""
    floats = words.view(f"<f{words.itemsize}")
    if name == "BF16":
        with np.errstate(over="ignore", invalid="ignore"):
            single = floats.astype("<f4")
        return not np.any(single.view("<u4") & 0xFFFF) and _same(single, floats)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _same(floats.astype("<f4" if name == "F32" else "<f2"), floats)


def _same(narrow: NDArray[np.floating], floats: NDArray[np.floating]) -> bool:
    return bool(
        np.array_equal(
            narrow.astype(floats.dtype).view(f"<u{floats.itemsize}"), floats.view(f"<u{floats.itemsize}")
        )
    )


def _integer(dtype: str, bits: int, lowest: float, highest: float) -> str | None:
    """The narrowest integer dtype of the same sign that holds the range, if it is narrower."""
    for narrow in (8, 16, 32):
        if narrow < bits:
            limits = np.iinfo(f"{'i' if dtype in SIGNED else 'u'}{narrow // 8}")
            if limits.min <= lowest and highest <= limits.max:
                return f"{dtype[0]}{narrow}"
    return None
