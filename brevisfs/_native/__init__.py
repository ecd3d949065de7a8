"""The native executor and encoder as Python sees them.

Whatever takes bytes takes any C-contiguous buffer. Calls release the GIL while they run and may be
made from many threads at once; each thread keeps one scratch buffer for all its calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from brevisfs._native._brevis import ffi, lib
from brevisfs.errors import BrevisError, ExitCode

__all__ = [
    "Analysis",
    "BlockDamaged",
    "Buffer",
    "Checksum",
    "Index",
    "NativeError",
    "NotApplicable",
    "Program",
    "ProgramRefused",
    "Stored",
    "UnknownCode",
    "checksum",
    "columns_item",
    "cpu",
    "huffman_lengths",
    "huffman_tables",
    "join_shared",
    "rans_frequencies",
    "rans_tables",
    "read",
]

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
_U64 = npt.NDArray[np.uint64]

_REFUSED = range(10, 30)
_DAMAGED = range(30, 50)


class NativeError(BrevisError):
    """A native call failed. `code` is a BRV_ code of native/brevis.h, `node` the prefix index of the
    program's node it failed at, or -1."""

    def __init__(self, message: str, code: int, node: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.node = node


class ProgramRefused(NativeError):
    """A program or its shared parts break a rule of the format."""

    exit_code = ExitCode.DAMAGED


class UnknownCode(ProgramRefused):
    """A program uses an operator or a literal encoding this version does not know."""

    exit_code = ExitCode.UNSUPPORTED


class BlockDamaged(NativeError):
    """A block does not decode, or not to bytes with its checksum: the message says why, `block` which.

    Of `read`, `part` says in which part, and `in_target` whether it is a block of what that refers to.
    """

    exit_code = ExitCode.DAMAGED

    def __init__(
        self, message: str, code: int, node: int, block: int, part: int = 0, in_target: bool = False
    ) -> None:
        super().__init__(message, code, node)
        self.block = block
        self.part = part
        self.in_target = in_target


class NotApplicable(NativeError):
    """Encoding: the program does not describe these words (`node` says where)."""


def _raise(status: Any) -> None:
    code, node = int(status.code), int(status.node)
    what = ffi.string(status.what).decode() if status.what else "failed"
    at = f" (node {node})" if node >= 0 else ""
    if code == lib.BRV_NO_MEMORY:
        raise MemoryError(what)
    if code == lib.BRV_SYSTEM:
        raise OSError(node, os.strerror(node))
    if code in (lib.BRV_UNKNOWN_OPERATOR, lib.BRV_UNKNOWN_ENCODING):
        raise UnknownCode(f"{what}{at}; a newer version may read it", code, node)
    if code in _REFUSED:
        raise ProgramRefused(f"{what}{at}", code, node)
    if code in _DAMAGED:
        block, part, in_target = int(status.block), int(status.part), bool(status.in_target)
        raise BlockDamaged(f"{what}{at}", code, node, block, part, in_target)
    if code == lib.BRV_NOT_APPLICABLE:
        raise NotApplicable(f"block {status.block}: {what}{at}", code, node)
    raise NativeError(f"block {status.block}: {what}{at}", code, node)


class _Local(threading.local):
    """One scratch buffer and one status a thread."""

    def __init__(self) -> None:
        self.scratch = ffi.gc(lib.brv_scratch_new(), lib.brv_scratch_free)
        if not self.scratch:
            raise MemoryError("no scratch buffer")
        self.status = ffi.new("brv_status *")


_local = _Local()


def forced_cpu() -> Any:
    """The instruction set that BREVISFS_CPU names, as native code takes it."""
    name = os.environ.get("BREVISFS_CPU")
    return name.encode() if name else ffi.NULL


def cpu() -> str:
    """The instruction set in use: "avx512", "avx2" or "scalar".

    The best that this machine has, or the one that BREVISFS_CPU names if it has that.
    """
    return str(ffi.string(lib.brv_cpu(forced_cpu())).decode())


def checksum(data: Buffer) -> int:
    """XXH3-64, seed 0, of a buffer."""
    with ffi.from_buffer("uint8_t[]", data) as view:
        return int(lib.brv_checksum(view, len(view)))


class Checksum:
    """Streaming XXH3-64, seed 0."""

    def __init__(self) -> None:
        self._state = ffi.gc(lib.brv_hash_new(), lib.brv_hash_free)
        if not self._state:
            raise MemoryError("no checksum state")

    def update(self, data: Buffer) -> None:
        with ffi.from_buffer("uint8_t[]", data) as view:
            lib.brv_hash_update(self._state, view, len(view))

    @property
    def value(self) -> int:
        return int(lib.brv_hash_value(self._state))


class _Base:
    """A validated program for a section of `count` words of `bits` bits in blocks of `block` words."""

    def __init__(self, wire: Buffer, shared: Buffer | None, bits: int, count: int, block: int) -> None:
        if not 0 <= count < 2**64:
            raise ValueError(f"{count} words are out of range")
        status = _local.status
        # bytes(): an empty string still is shared parts, unlike None
        parts = ffi.NULL if shared is None else ffi.from_buffer("uint8_t[]", bytes(shared))
        with ffi.from_buffer("uint8_t[]", wire) as view:
            handle = lib.brv_program_new(
                view,
                len(view),
                parts,
                0 if shared is None else len(parts),
                bits,
                count,
                block,
                forced_cpu(),
                status,
            )
        if not handle:
            _raise(status)
        self._p = ffi.gc(handle, lib.brv_program_free, lib.brv_program_memory(handle))
        self.bits, self.count, self.block = bits, count, block

    @property
    def handle(self) -> Any:
        """The native program, for as long as this object lives."""
        return self._p

    @property
    def memory(self) -> int:
        """Bytes held by the program and its prepared tables."""
        return int(lib.brv_program_memory(self._p))

    def _classes(self, node: int, classes: npt.NDArray[np.uint8]) -> None:
        view = ffi.from_buffer("uint8_t[]", np.ascontiguousarray(classes, np.uint8))
        if lib.brv_set_classes(self._p, node, view, len(view), _local.status):
            _raise(_local.status)


class Program(_Base):
    """A program with its shared parts, ready to decode and encode; immutable, shared by threads.

    Raises ProgramRefused (UnknownCode) if it breaks a rule. `classes` gives, for encoding, the class
    of every segment of each Lit with several tables, by prefix index.
    """

    def __init__(
        self,
        wire: Buffer,
        shared: Buffer,
        bits: int,
        count: int,
        block: int,
        classes: dict[int, npt.NDArray[np.uint8]] | None = None,
    ) -> None:
        super().__init__(wire, shared, bits, count, block)
        for node, values in (classes or {}).items():
            self._classes(node, values)
        self._prepare = threading.Lock()
        self._prepared = False

    def decode(
        self,
        payload: Buffer,
        first_block: int,
        spans: _U64,
        checks: _U64 | None,
        out: Buffer,
        lo: int,
        hi: int,
        target: Buffer | None = None,
        ref: int = 0,
    ) -> None:
        """Fill out[0 : hi - lo] with bytes lo..hi of the section's flat form.

        spans, shape (k, 2): start and length in `payload` of the k blocks from first_block on, which
        must be just those that the range touches. checks, shape (k,): their XXH3, or None to skip.
        With `ref` 1 or 2 what the program gives is xored with, or added to, the words of `target`:
        the flat bytes that another section has in these blocks. Raises BlockDamaged.
        """
        spans = np.ascontiguousarray(spans, np.uint64)
        blocks = len(spans)
        sums = ffi.NULL
        if checks is not None:
            checks = np.ascontiguousarray(checks, np.uint64)
            if len(checks) != blocks:
                raise ValueError(f"{len(checks)} checksums for {blocks} blocks")
            sums = ffi.from_buffer("uint64_t[]", checks)
        other = ffi.NULL if target is None else ffi.from_buffer("uint8_t[]", target)
        if ref and len(other) < self._flat_bytes(first_block, blocks):
            raise ValueError(f"{len(other)} bytes to combine {blocks} blocks with")
        with (
            ffi.from_buffer("uint8_t[]", payload) as view,
            ffi.from_buffer("uint8_t[]", out, require_writable=True) as filled,
        ):
            if hi - lo > len(filled) or lo < 0:
                raise ValueError(f"{hi - lo} bytes do not fit a buffer of {len(filled)}")
            rc = lib.brv_decode(
                self._p,
                _local.scratch,
                view,
                len(view),
                first_block,
                blocks,
                ffi.from_buffer("uint64_t[]", spans),
                sums,
                other,
                ref,
                filled,
                lo,
                hi,
                _local.status,
            )
        if rc:
            _raise(_local.status)

    def _flat_bytes(self, first: int, blocks: int) -> int:
        end = min(self.count, (first + blocks) * self.block)
        return max(0, end - first * self.block) * self.bits // 8

    def encode_bound(self) -> int:
        """Bytes that no block's payload exceeds."""
        return int(lib.brv_encode_bound(self._p))

    def _prepare_encode(self) -> None:
        if self._prepared:
            return
        with self._prepare:
            if not self._prepared and lib.brv_prepare_encode(self._p):
                raise MemoryError("no memory for the encoder's tables")
            self._prepared = True

    def encode_block(self, index: int, data: Buffer, out: Buffer) -> int:
        """Encode the flat bytes of block `index` into out; returns the payload's length.

        Raises NotApplicable if D does not apply.
        """
        self._prepare_encode()
        length = ffi.new("size_t *")
        with (
            ffi.from_buffer("uint8_t[]", data) as view,
            ffi.from_buffer("uint8_t[]", out, require_writable=True) as target,
        ):
            rc = lib.brv_encode_block(
                self._p, _local.scratch, index, view, len(view), target, len(target), length, _local.status
            )
        if rc:
            _raise(_local.status)
        return int(length[0])


class Index:
    """The index of an archive, for native code: see brv_index of native/brevis.h.

    `sections` have the fields of brv_entry in its layout, `blocks` the shape (blocks, 2), the index begins at
    byte `begin` of the archive, and the original has `size` bytes. All has been checked, but for where the
    blocks of a section lie.
    """

    def __init__(self, sections: npt.NDArray[Any], blocks: _U64, begin: int, size: int) -> None:
        if sections.dtype.itemsize != ffi.sizeof("brv_entry"):
            raise ValueError(f"section entries of {sections.dtype.itemsize} bytes")
        if blocks.dtype != np.uint64 or not blocks.flags.c_contiguous:
            raise ValueError("block entries are an array of uint64")
        self._sections = ffi.from_buffer("brv_entry[]", sections)
        self._blocks = ffi.from_buffer("uint64_t[]", blocks)
        self.handle = ffi.new("brv_index *", (self._sections, self._blocks, len(sections), begin, size))

    def __len__(self) -> int:
        return len(self._sections)

    def blocks_good(self, section: int) -> bool:
        """Whether the payloads of a section follow one another and fill its record, none above its limit."""
        return bool(lib.brv_blocks_good(self.handle, section))

    def prologue(self, section: int, data: npt.NDArray[np.uint8]) -> tuple[bytes, bytes]:
        """The program and the shared parts that a section's prologue ends with. Raises ProgramRefused."""
        if len(data) != self._sections[section].prologue:
            raise ValueError(f"a prologue of {len(data)} bytes")
        found = ffi.new("size_t[2]")
        view = ffi.from_buffer("uint8_t[]", data)
        if lib.brv_prologue(self._sections + section, view, found, found + 1, _local.status):
            _raise(_local.status)
        shared = len(data) - int(found[1])
        return data[shared - int(found[0]) : shared].tobytes(), data[shared:].tobytes()


class Stored:
    """A section of an archive as `read` finds it: its program, and where its blocks are.

    `entries`, shape (blocks, 2), are of each block the offset in the archive of the byte after its payload
    and the XXH3 of its flat bytes; the payloads follow one another, each behind 4 bytes, the first from
    `start` on. They are the caller's to check. With `ref` 1 or 2 the program gives differences to the words
    of `target`, a section with as many words of as many bits in blocks of the same size.
    """

    def __init__(
        self, program: Program, entries: _U64, start: int, target: Stored | None = None, ref: int = 0
    ) -> None:
        if entries.dtype != np.uint64 or not entries.flags.c_contiguous:
            raise ValueError("block entries are an array of uint64")
        if entries.shape != (-(-program.count // program.block), 2):
            raise ValueError(f"{entries.shape} block entries for {program.count} words")
        self.program, self.target, self.ref = program, target, ref
        self._entries = ffi.from_buffer("uint64_t[]", entries)
        self.section = ffi.new("brv_section *", (program.handle, self._entries, start))
        self.part = ffi.new("brv_part *")
        self.part.section, self.part.ref = self.section, ref
        self.part.target = ffi.NULL if target is None else target.section


def read(file: int, parts: Sequence[tuple[Stored, int, int]], out: Buffer) -> None:
    """Fill out with bytes lo..hi of the flat form of each (section, lo, hi), one after another.

    `file` is the descriptor of their archive. Raises BlockDamaged, and OSError of reading.
    """
    wanted = ffi.new("brv_part[]", len(parts))
    size = 0
    for part, (stored, lo, hi) in zip(wanted, parts, strict=True):
        part.section, part.target, part.ref = stored.part.section, stored.part.target, stored.part.ref
        part.lo, part.hi = lo, hi
        size += hi - lo
    with ffi.from_buffer("uint8_t[]", out, require_writable=True) as filled:
        if len(filled) != size:
            raise ValueError(f"{size} bytes do not fill a buffer of {len(filled)}")
        rc = lib.brv_read(file, wanted, len(parts), _local.scratch, filled, False, _local.status)
    if rc:
        _raise(_local.status)


def scratch() -> Any:
    """The calling thread's brv_scratch."""
    return _local.scratch


_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _container(bits: int) -> int:
    return 1 if bits <= 8 else 2 if bits <= 16 else 4 if bits <= 32 else 8


class Analysis(_Base):
    """A program without its shared parts: D of a block down to one node, for synthesis."""

    def __init__(self, wire: Buffer, bits: int, count: int, block: int) -> None:
        super().__init__(wire, None, bits, count, block)

    def words(self, index: int, data: Buffer, node: int) -> npt.NDArray[Any]:
        """The words that D gives prefix node `node` for the blocks from `index` on with flat bytes `data`."""
        dtype = _DTYPES[_container(int(lib.brv_node_bits(self._p, node)))]
        n = ffi.new("size_t *")
        with ffi.from_buffer("uint8_t[]", data) as view:
            out = np.empty(len(view) * 8 // self.bits, dtype)
            rc = lib.brv_run_words(
                self._p, _local.scratch, index, view, len(view), node, ffi.from_buffer(out), n, _local.status
            )
        if rc:
            _raise(_local.status)
        return out[: int(n[0])]

    def histogram(
        self, index: int, data: Buffer, node: int, hist: _U64, classes: npt.NDArray[np.uint8] | None = None
    ) -> None:
        """Add the words of `node` for block `index` to hist, shape (tables, 2**bits); with classes,
        the class of every segment of the node's stream, row by class."""
        bits = int(lib.brv_node_bits(self._p, node))
        if hist.dtype != np.uint64 or not hist.flags.c_contiguous or hist.size % (1 << min(bits, 16)):
            raise ValueError(f"a histogram of node {node} has {1 << min(bits, 16)} columns of uint64")
        if classes is not None and (len(classes) == 0 or int(classes.max()) >= hist.size >> bits):
            raise ValueError("a class has no row in the histogram")
        with ffi.from_buffer("uint8_t[]", data) as view:
            rc = lib.brv_histogram(
                self._p,
                _local.scratch,
                index,
                view,
                len(view),
                node,
                ffi.from_buffer("uint64_t[]", hist, require_writable=True),
                ffi.NULL if classes is None else ffi.from_buffer("uint8_t[]", classes),
                0 if classes is None else len(classes),
                _local.status,
            )
        if rc:
            _raise(_local.status)


def _rows(hist: _U64) -> _U64:
    return np.ascontiguousarray(np.atleast_2d(hist), np.uint64)


def huffman_lengths(hist: _U64, max_len: int) -> npt.NDArray[np.uint8]:
    """Optimal code lengths of at most max_len bits for a histogram of shape (2**b,) or (T, 2**b)."""
    rows = _rows(hist)
    out = np.zeros(rows.shape, np.uint8)
    for row, lengths in zip(rows, out, strict=True):
        rc = lib.brv_huffman_lengths(
            ffi.from_buffer("uint64_t[]", row), len(row), max_len, ffi.from_buffer("uint8_t[]", lengths)
        )
        if rc == lib.BRV_NO_MEMORY:
            raise MemoryError("no memory for code lengths")
        if rc:
            raise ValueError(f"no codes of at most {max_len} bits for {np.count_nonzero(row)} symbols")
    return out.reshape(hist.shape)


def rans_frequencies(hist: _U64, prob_bits: int) -> npt.NDArray[np.uint32]:
    """Frequencies summing to 2**prob_bits for a histogram of shape (2**b,) or (T, 2**b)."""
    rows = _rows(hist)
    out = np.zeros(rows.shape, np.uint32)
    for row, freq in zip(rows, out, strict=True):
        if lib.brv_rans_frequencies(
            ffi.from_buffer("uint64_t[]", row), len(row), prob_bits, ffi.from_buffer("uint32_t[]", freq)
        ):
            raise ValueError(f"{np.count_nonzero(row)} symbols do not fit {prob_bits} probability bits")
    return out.reshape(hist.shape)


def huffman_tables(hist: _U64, max_len: int) -> bytes:
    """The shared part of a huffman Lit for a histogram of shape (T, 2**b)."""
    lengths = np.atleast_2d(huffman_lengths(hist, max_len))
    out = np.empty(lengths.size + 16, np.uint8)
    n = lib.brv_huffman_write(
        ffi.from_buffer("uint8_t[]", lengths),
        lengths.shape[1],
        lengths.shape[0],
        ffi.from_buffer("uint8_t[]", out),
        len(out),
    )
    return out[: int(n)].tobytes()


def rans_tables(hist: _U64, prob_bits: int) -> bytes:
    """The shared part of a rans Lit for a histogram of shape (T, 2**b)."""
    freq = np.atleast_2d(rans_frequencies(hist, prob_bits))
    out = np.empty(freq.size * 5 + 16, np.uint8)
    n = lib.brv_rans_write(
        ffi.from_buffer("uint32_t[]", freq),
        freq.shape[1],
        freq.shape[0],
        ffi.from_buffer("uint8_t[]", out),
        len(out),
    )
    return out[: int(n)].tobytes()


def columns_item(places: npt.NDArray[np.uint8], pairs: npt.NDArray[np.uint8], tables: int) -> bytes:
    """What the shared part of a Lit with column classes begins with: the class of each place, the table of
    each pair of a row class and a column class, shape (rows, columns)."""
    out = np.empty(len(places) + pairs.size + 16, np.uint8)
    n = lib.brv_columns_write(
        ffi.from_buffer("uint8_t[]", places),
        len(places),
        pairs.shape[1],
        ffi.from_buffer("uint8_t[]", pairs),
        pairs.shape[0],
        tables,
        ffi.from_buffer("uint8_t[]", out),
        len(out),
    )
    return out[: int(n)].tobytes()


def join_shared(items: Sequence[bytes]) -> bytes:
    """Shared parts in prefix order as one string, each behind its varint length."""
    out = bytearray()
    for item in items:
        n = len(item)
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)
        out += item
    return bytes(out)
