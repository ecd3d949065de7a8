"""brevisfs explain: the programs of an archive in text form, and where its bytes are."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click

from brevisfs import archive, dsl, safetensors
from brevisfs.cli import _names
from brevisfs.cli._console import complain, percent, say, size
from brevisfs.cli._files import Batch, Item, as_path, opened
from brevisfs.errors import BrevisError, ExitCode


class NoTensor(BrevisError):
    """The archive holds no tensor of that name."""

    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True)
class Explained:
    """One section; sizes and offsets in bytes, `block` in words. What cannot be read is None."""

    title: str
    tensors: list[str]
    offset: int
    original: int
    bits: int
    words: int
    block: int
    record: int
    stored: int | None
    program: str | None
    program_bytes: int | None
    shared_bytes: int | None
    block_bytes: list[int] | None
    fault: str | None
    code: int


@click.command()
@click.argument("path", metavar="ARCHIVE", type=as_path)
@click.argument("tensor", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(path: Path, tensor: str | None, as_json: bool) -> int:
    """Show how an archive stores its tensors, or just TENSOR (a name or a pattern such as '*.weight').

    For each section: what it holds, its program, and how the stored bytes divide over the program,
    what its blocks share, and the blocks.
    """
    batch = Batch()

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            reader = archive.Reader(fd)
            named = _names.tensors(reader)
            explained = [_explain(reader, section, named) for section in _chosen(reader, named, tensor)]
        if as_json:
            say(json.dumps({"archive": str(path), "sections": [asdict(one) for one in explained]}))
        else:
            _print(path, reader, explained, whole=tensor is None)
        for one in explained:
            if one.code:
                batch.fail(one.code)

    batch.step(Item(path, Path(path.name), in_folder=False), work)
    return batch.code


def _chosen(
    reader: archive.Reader, named: Sequence[safetensors.Tensor], pattern: str | None
) -> Iterator[archive.Section]:
    if pattern is None:
        yield from reader.sections
        return
    matching = [one for one in named if one.name == pattern] or [
        one for one in named if fnmatchcase(one.name, pattern)
    ]
    if not matching:
        raise NoTensor(
            f"no tensor is called {pattern!r}" if named else "the names of its tensors cannot be read"
        )
    begins = {one.begin for one in matching if one.begin < one.end}
    if not begins:
        complain(f"{matching[0].name} is empty and takes no bytes")
    seen = -1
    for begin in sorted(begins):
        if (section := reader.section_at(begin)).index != seen:
            seen = section.index
            yield section


def _explain(
    reader: archive.Reader, section: archive.Section, named: Sequence[safetensors.Tensor]
) -> Explained:
    held = _names.within(named, section.offset, section.end)
    wire: bytes | None = None
    shared, blocks, text, fault, code = None, None, None, None, 0
    try:
        wire, shared, lengths = reader.describe(section)
        blocks = [int(length) for length in lengths]
        text = dsl.to_text(dsl.from_wire(wire, section.bits, section.count))
        if section.ref != archive.Ref.NONE:
            text = f"section {section.target} {section.ref.name.lower()} {text}"
    except (archive.ArchiveError, dsl.ProgramError) as error:
        fault, code = str(error), int(error.exit_code)
    return Explained(
        title=_names.title(section, held),
        tensors=[tensor.name for tensor in held],
        offset=section.offset,
        original=section.size,
        bits=section.bits,
        words=section.count,
        block=section.block,
        record=section.record,
        stored=None if blocks is None else section.prologue + sum(blocks) + 4 * len(blocks),
        program=text,
        program_bytes=None if wire is None else len(wire),
        shared_bytes=None if shared is None else len(shared),
        block_bytes=blocks,
        fault=fault,
        code=code,
    )


def _print(path: Path, reader: archive.Reader, explained: list[Explained], whole: bool) -> None:
    if whole:
        saved = percent(reader.size - reader.stored, reader.size)
        say(f"{path}: {size(reader.size)} in {size(reader.stored)}, {saved} saved")
        say(f"{len(reader.sections)} sections, {reader.blocks} blocks")
        say()
    for one in explained:
        for line in _lines(one):
            say(line)
        say()


def _lines(one: Explained) -> Iterator[str]:
    yield one.title
    if len(one.tensors) > 1:
        yield f"  holds     {', '.join(one.tensors)}"
    yield f"  original  bytes {one.offset}–{one.offset + one.original}, {one.words} words of {one.bits} bits"
    if one.stored is not None and one.block_bytes is not None:
        part = percent(one.stored, one.original)
        yield f"  stored    {one.original} → {one.stored} bytes ({part}), at byte {one.record} of the archive"
        blocks = sum(one.block_bytes)
        parts = f"program {one.program_bytes}, shared parts {one.shared_bytes}, blocks {blocks}"
        yield f"            {parts} ({len(one.block_bytes)} of {one.block} words)"
    yield f"  program   {one.program}" if one.fault is None else f"  unreadable: {one.fault}"
