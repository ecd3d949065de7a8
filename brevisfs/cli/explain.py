"""brevisfs explain: the programs of an archive, where its bytes are, and what else the search considers."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from brevisfs import _native, archive, dsl, safetensors, synth
from brevisfs.cli import _names
from brevisfs.cli._console import complain, percent, say, size
from brevisfs.cli._files import Batch, Item, as_path, opened
from brevisfs.errors import BrevisError, ExitCode


class NoTensor(BrevisError):
    """The archive holds no tensor of that name."""

    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True)
class NodeShare:
    """A node of a program, how far below the root it is, and the bytes of its items and shared part."""

    node: str
    depth: int
    stored: int


@dataclass(frozen=True)
class Searched:
    """What the search makes of a section now: the program found, the next best, and its effort."""

    found: Considered
    runner_up: Considered | None
    expanded: int
    programs: int
    dropped: int


@dataclass(frozen=True)
class Considered:
    """A program and about how many bytes it takes."""

    program: str
    size: int


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
    nodes: list[NodeShare] | None
    searched: Searched | None
    fault: str | None
    code: int


@click.command()
@click.argument("path", metavar="ARCHIVE", type=as_path)
@click.argument("tensor", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--profile",
    type=click.Choice([profile.value for profile in synth.Profile]),
    default=synth.Profile.BALANCED.value,
    show_default=True,
    help="What the runner-up is searched for.",
)
@click.option("--no-search", is_flag=True, help="Leave out the runner-up, which takes as long as packing.")
def command(path: Path, tensor: str | None, as_json: bool, profile: str, no_search: bool) -> int:
    """Show how an archive stores its tensors, or just TENSOR (a name or a pattern such as '*.weight').

    For each section: what it holds, its program, how the stored bytes divide over the program, what its
    blocks share, and the blocks, and over the nodes of the program; then the program that the search finds
    next best, and what it took to find them.
    """
    batch = Batch()
    searched_for = None if no_search else synth.Profile(profile)

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            reader = archive.Reader(fd)
            named = _names.tensors(reader)
            chosen = _chosen(reader, named, tensor)
            explained = [_explain(fd, reader, section, named, searched_for) for section in chosen]
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
    fd: int,
    reader: archive.Reader,
    section: archive.Section,
    named: Sequence[safetensors.Tensor],
    profile: synth.Profile | None,
) -> Explained:
    held = _names.within(named, section.offset, section.end)
    wire: bytes | None = None
    shared, blocks, text, nodes, searched, fault, code = None, None, None, None, None, None, 0
    try:
        wire, shared, lengths = reader.describe(section)
        blocks = [int(length) for length in lengths]
        node = dsl.from_wire(wire, section.bits, section.count)
        text = dsl.to_text(node)
        if section.ref != archive.Ref.NONE:
            text = f"section {section.target} {section.ref.name.lower()} {text}"
        nodes = _shares(node, _node_bytes(fd, reader, section, wire, node, shared, blocks), section)
        if profile is not None:
            searched = _search(reader, section, held, profile)
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
        nodes=nodes,
        searched=searched,
        fault=fault,
        code=code,
    )


def _node_bytes(
    fd: int,
    reader: archive.Reader,
    section: archive.Section,
    wire: bytes,
    node: dsl.Node,
    shared: bytes,
    blocks: list[int],
) -> Counter[int]:
    """Bytes by prefix index of the program's nodes."""
    bits, count = section.bits, section.count
    analysis = _native.Analysis(wire, bits, count, section.block)
    found = Counter(dsl.shared_bytes(node, bits, count, shared))
    at = section.record + section.prologue
    for block, length in enumerate(blocks):
        lo = block * section.block_size
        data = _coded(reader, section, lo, min(section.size, lo + section.block_size))

        def words(index: int, block: int = block, data: npt.NDArray[np.uint8] = data) -> int:
            return len(analysis.words(block, data, index))

        payload = os.pread(fd, length, at + 4)
        found.update(dsl.payload_bytes(node, bits, count, words, payload))
        at += 4 + length
    return found


def _coded(reader: archive.Reader, section: archive.Section, lo: int, hi: int) -> npt.NDArray[np.uint8]:
    """What a section's program gives of its bytes `lo` to `hi`."""
    data = np.empty(hi - lo, np.uint8)
    reader.read_into(section.offset + lo, data)
    if section.ref == archive.Ref.NONE:
        return data
    target = np.empty(hi - lo, np.uint8)
    reader.read_into(reader.sections[section.target].offset + lo, target)
    differences: npt.NDArray[np.uint8] = archive.difference(data, target, section.bits, section.ref)
    return differences


def _shares(node: dsl.Node, found: Counter[int], section: archive.Section) -> list[NodeShare]:
    shares = []
    labels = {0: ""}
    for index, depth, inner, bits, count in dsl.walk(node, section.bits, section.count):
        label = labels.pop(index) + _label(inner)
        shares.append(NodeShare(label, depth, found[index]))
        sizes = inner.widths if isinstance(inner, dsl.Merge) else getattr(inner, "lengths", ())
        below = index + 1
        for place, (child, child_bits, child_count) in enumerate(dsl.children(inner, bits, count)):
            labels[below] = f"{sizes[place]}: " if sizes else ""
            below += sum(1 for _ in dsl.walk(child, child_bits, child_count))
    return shares


def _label(node: dsl.Node) -> str:
    """A node without what is below it."""
    match node:
        case dsl.Lit() | dsl.Const():
            return dsl.to_text(node)
        case dsl.Map(function, _):
            return dsl.to_text(dsl.Map(function, dsl.Const(0))).removesuffix(", Const 0)").replace("(", " ")
        case dsl.Scan(kind, _):
            return f"Scan {kind}"
        case dsl.Repeat(times, _):
            return f"Repeat {times}"
        case dsl.Transpose(columns, _):
            return f"Transpose {columns}"
        case dsl.Palette(words, _):
            return f"Palette of {len(words)}"
        case dsl.Select(word, _, _):
            return f"Select {word:#x}"
        case _:
            return type(node).__name__


class _Bytes:
    """The bytes of a section, for the search."""

    def __init__(self, reader: archive.Reader, section: archive.Section) -> None:
        self._reader, self._offset, self.nbytes = reader, section.offset, section.size

    def read(self, lo: int, hi: int) -> bytes:
        data = np.empty(hi - lo, np.uint8)
        self._reader.read_into(self._offset + lo, data)
        return data.tobytes()


def _search(
    reader: archive.Reader,
    section: archive.Section,
    held: Sequence[safetensors.Tensor],
    profile: synth.Profile,
) -> Searched:
    shape = held[0].shape if len(held) == 1 else ()
    block = section.block if section.kind == archive.Kind.HEADER else None
    plan = synth.synthesize(_Bytes(reader, section), section.dtype, shape, profile, block)
    best, *others = (Considered(each.text, each.size) for each in plan.candidates)
    effort = plan.effort
    return Searched(best, next(iter(others), None), effort.expanded, effort.told, effort.dropped)


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
    if one.program is not None:
        yield f"  program   {_shortened(one.program)}"
    for share in one.nodes or ():
        if share.stored:
            part = percent(share.stored, one.original)
            yield f"            {'  ' * share.depth}{share.node}: {share.stored} bytes ({part})"
        else:
            yield f"            {'  ' * share.depth}{share.node}"
    if one.searched is not None:
        yield from _search_lines(one.searched, one.program)
    if one.fault is not None:
        yield f"  unreadable: {one.fault}"


def _shortened(program: str) -> str:
    """A program in which a palette of many words shows the first and the last."""
    return re.sub(r"(Palette\([^,:]+, [^,:]+, )(?:[^,:]+, ){2,}([^,:]+: )", r"\1…, \2", program)


def _search_lines(searched: Searched, program: str | None) -> Iterator[str]:
    found, other = searched.found, searched.runner_up
    if found.program != program:
        yield f"  found now {_shortened(found.program)}, about {found.size} bytes"
    if other is not None:
        more = f"{100 * (other.size - found.size) / found.size:+.1f} %"
        yield f"  runner-up {_shortened(other.program)}, about {other.size} bytes ({more})"
    effort = f"{searched.expanded} states expanded, {searched.programs} programs told"
    yield f"  search    {effort}, {searched.dropped} states dropped"
