"""Reading untrusted bytes forward, and the varint both ways."""

from __future__ import annotations


class Malformed(ValueError):
    """The bytes are not what their format says."""


class Cursor:
    """A position in bytes; every read raises Malformed instead of passing the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise Malformed(f"{length} bytes announced where {self.left} are left")
        self._at += length
        return self._data[self._at - length : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            group = self.byte()
            value |= (group & 0x7F) << shift
            if group < 0x80:
                if value >= 1 << 64:
                    raise Malformed("a varint of 2^64 or more")
                if group == 0 and shift:
                    raise Malformed("a varint longer than it need be")
                return value
        raise Malformed("a varint of more than 10 bytes")

    def item(self) -> Cursor:
        """The bytes a varint length announces."""
        return Cursor(self.take(self.varint()))

    def end(self) -> None:
        """Raises Malformed unless everything was read."""
        if self.left:
            raise Malformed(f"{self.left} bytes too many")


def varint(value: int) -> bytes:
    """`value`, below 2^64, as unsigned LEB128."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} does not fit a varint")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def item(data: bytes) -> bytes:
    """`data` after its length as a varint."""
    return varint(len(data)) + data
