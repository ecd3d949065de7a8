"""What the sections of an archive are called: the names stand in the header of the model it holds."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from brevisfs import archive, safetensors


def tensors(reader: archive.Reader) -> Sequence[safetensors.Tensor]:
    """The tensors of the archived model in file order; none if its header cannot be read."""

    def read(offset: int, length: int) -> bytes:
        data = bytearray(length)
        reader.read_into(offset, data)
        return bytes(data)

    try:
        return safetensors.parse(reader.size, read).tensors
    except (archive.ArchiveError, safetensors.NotSafetensors):
        return ()


def within(named: Sequence[safetensors.Tensor], begin: int, end: int) -> list[safetensors.Tensor]:
    """The tensors with bytes in `begin` to `end` of the original, of all in file order."""
    first = bisect_right(named, begin, key=lambda tensor: tensor.end)
    stop = bisect_left(named, end, key=lambda tensor: tensor.begin)
    return list(named[first:stop])


def title(section: archive.Section, held: Sequence[safetensors.Tensor]) -> str:
    """A section by what is in it."""
    if section.kind == archive.Kind.HEADER:
        return "safetensors header"
    if not held:
        return f"section {section.index}"
    first = f"{held[0].name}  {held[0].dtype} {list(held[0].shape)}"
    return first if len(held) == 1 else f"{len(held)} small tensors"
