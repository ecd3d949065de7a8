"""Writing an archive from its first byte to its last, without seeking back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from brevisfs import _native
from brevisfs.archive import _layout
from brevisfs.archive._layout import Data, Kind, Ref, Section, Table


class Writer:
    """Writes one archive; memory grows with the index only, 16 bytes a block.

    `write` takes all of what it is given, in order; whatever it raises passes through. Sections
    come in the order of the original, blocks in the order of their section. A call that does not
    fit what came before raises ValueError.
    """

    def __init__(self, write: Callable[[Data], Any], original_length: int) -> None:
        if not 0 <= original_length < _layout.MAX_ORIGINAL:
            raise ValueError(f"an original of {original_length} bytes cannot be archived")
        self._write = write
        self._hash = _native.Checksum()
        self._length = original_length
        self._section: Section | None = None
        self._sections = 0
        self._covered = 0
        self._entries = bytearray()
        self._blocks = bytearray()
        self.stored = 0
        """Bytes written so far."""
        head = _layout.pack_head(original_length)
        self._head_check = int.from_bytes(head[40:48], "little")
        self._put(head)

    def begin_section(
        self,
        kind: Kind,
        dtype: str | None,
        offset: int,
        bits: int,
        count: int,
        block: int,
        wire: Data,
        shared: Data,
        ref: Ref = Ref.NONE,
        target: int = 0,
    ) -> None:
        """Start the section at byte `offset` of the original: `count` words of `bits` bits.

        Unless `ref` is NONE, what it is encoded from are the differences from section `target`.
        """
        self._end_section()
        if len(wire) > _layout.MAX_PROGRAM or len(shared) > _layout.MAX_SHARED:
            raise ValueError(f"a program of {len(wire)} + {len(shared)} bytes is too long for the format")
        if not 0 < block <= _layout.MAX_BLOCK or block % _layout.BLOCK_GRAIN:
            raise ValueError(f"blocks of {block} words do not fit the format: a multiple of 64 up to 2^20")
        section = Section(
            index=self._sections,
            kind=kind,
            code=_layout.dtype_code(dtype),
            offset=offset,
            bits=bits,
            count=count,
            block=block,
            record=self.stored,
            prologue=0,
            first_block=len(self._blocks) // _layout.BLOCK_ENTRY_SIZE,
            ref=ref,
            target=target,
        )
        prologue = _layout.pack_prologue(section, wire, shared)
        section = replace(section, prologue=len(prologue))
        row = _layout.unpack_entries(_layout.pack_entry(section))
        rule = _layout.broken_entry_rule(row, self._length) or self._broken_ref_rule(section, row)
        if rule or offset != self._covered or section.end > self._length:
            raise ValueError(f"{section} does not fit: {rule or f'byte {self._covered} comes next'}")
        self._section = section
        self._sections += 1
        self._covered = section.end
        self._put(prologue)

    def add_block(self, payload: Data, checksum: int) -> None:
        """Append the section's next block; `checksum` is the XXH3 of its decoded bytes."""
        section = self._section
        if section is None or self._blocks_of(section) == section.blocks:
            raise ValueError("no section has room for this block")
        if len(payload) > _layout.max_payload(section.block_size):
            raise ValueError(f"a payload of {len(payload)} bytes is too long for {section}")
        self._put(len(payload).to_bytes(4, "little"))
        self._put(payload)
        self._blocks += self.stored.to_bytes(8, "little") + checksum.to_bytes(8, "little")

    def finish(self, sha256: bytes) -> None:
        """Write index and tail; `sha256` is the digest of the whole original."""
        self._end_section()
        if self._covered != self._length:
            raise ValueError(f"{self._covered} of the original's {self._length} bytes are covered")
        if len(sha256) != 32:
            raise ValueError(f"a SHA-256 has 32 bytes, not {len(sha256)}")
        index_offset = self.stored
        self._put(self._blocks)
        self._put(self._entries)
        tail = _layout.Tail(
            index_offset=index_offset,
            sections=self._sections,
            blocks=len(self._blocks) // _layout.BLOCK_ENTRY_SIZE,
            length=self._length,
            index_check=_native.checksum(self._blocks + self._entries),
            archive_check=self._hash.value,
            sha256=sha256,
            head_check=self._head_check,
        )
        self._put(_layout.pack_tail(tail))

    def _broken_ref_rule(self, section: Section, row: Table) -> str | None:
        if section.ref == Ref.NONE:
            return None
        if section.target >= section.index:
            return f"section {section.target} is not before it"
        size = _layout.SECTION_ENTRY.itemsize
        at = section.target * size
        target = _layout.unpack_entries(bytes(self._entries[at : at + size]))
        return _layout.broken_ref_rule(row, target)

    def _blocks_of(self, section: Section) -> int:
        return len(self._blocks) // _layout.BLOCK_ENTRY_SIZE - section.first_block

    def _end_section(self) -> None:
        section = self._section
        if section is None:
            return
        if self._blocks_of(section) != section.blocks:
            raise ValueError(f"{section} has {self._blocks_of(section)} of {section.blocks} blocks")
        self._entries += _layout.pack_entry(section)
        self._section = None

    def _put(self, data: Data) -> None:
        self._write(data)
        self._hash.update(data)
        self.stored += len(data)
