"""Stores and archives for tests of the store and the mount."""

import hashlib
import os
import random
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from brevisfs import _native
from brevisfs.archive import Kind, Reader, Writer
from brevisfs.dsl import parse_text, to_wire

BLOCK = 64 * 1024
EXTENT = 512 * 1024


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that are the same in every run and differ by seed."""
    return random.Random(seed).randbytes(size)


def raw_archive(sections: Sequence[bytes], block: int = BLOCK) -> bytes:
    """An archive whose sections keep their bytes as they are, in blocks of `block` bytes."""
    out = BytesIO()
    writer = Writer(out.write, sum(map(len, sections)))
    wire = to_wire(parse_text("Lit raw"))
    offset = 0
    for section in sections:
        writer.begin_section(Kind.TENSOR, "U8", offset, 8, len(section), block, wire, b"")
        for begin in range(0, len(section), block):
            payload = section[begin : begin + block]
            writer.add_block(payload, _native.checksum(payload))
        offset += len(section)
    writer.finish(hashlib.sha256(b"".join(sections)).digest())
    return out.getvalue()


def add_archive(path: Path, sections: Sequence[bytes]) -> bytes:
    """Writes an archive and returns its original."""
    path.write_bytes(raw_archive(sections))
    return b"".join(sections)


def flip(path: Path, offset: int) -> None:
    """Changes one byte of a file in place, counted from its end if negative."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))


def block_at(path: Path, section: int, block: int) -> int:
    """Where in a raw archive the payload of a block starts."""
    with path.open("rb") as file:
        found = Reader(file.fileno()).sections[section]
    return found.record + found.prologue + 4 + block * (BLOCK + 4)


def record_at(path: Path, section: int) -> int:
    """Where in an archive a section's record starts."""
    with path.open("rb") as file:
        return Reader(file.fileno()).sections[section].record
