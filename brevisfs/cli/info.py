"""brevisfs info: sizes and saving of archives, and where they come from by dtype."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import click

from brevisfs import archive
from brevisfs.cli._console import columns, percent, say, size
from brevisfs.cli._files import Batch, Item, as_path, find, opened

_KINDS = {
    archive.Kind.BYTES: "other bytes",
    archive.Kind.HEADER: "header",
    archive.Kind.TENSOR: "other dtypes",
    archive.Kind.GROUP: "small tensors",
}
_INDEX = "index"

# docs/format.md, in bytes
_SECTION_ENTRY, _BLOCK_ENTRY, _TAIL = 21, 16, 104


@dataclass
class Share:
    """What some sections take, in bytes of the original and of the archive."""

    sections: int = 0
    original: int = 0
    stored: int = 0

    def add(self, other: "Share") -> None:
        self.sections += other.sections
        self.original += other.original
        self.stored += other.stored


@dataclass(frozen=True)
class Info:
    """One archive; sizes in bytes. `dtypes` has what is no tensor too, and adds up to the whole."""

    archive: str
    original: int
    stored: int
    sections: int
    blocks: int
    sha256: str
    dtypes: dict[str, Share]


@click.command()
@click.argument("archives", metavar="ARCHIVE…", nargs=-1, required=True, type=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(archives: tuple[Path, ...], as_json: bool) -> int:
    """Show sizes and saving of archives, by dtype. In a folder, other files are passed over."""
    batch = Batch()
    found: list[Info] = []

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            if not item.in_folder or archive.is_archive(fd):
                found.append(_info(item.path, archive.Reader(fd)))

    for item in find(archives, batch.lost):
        batch.step(item, work)
    if as_json:
        say(json.dumps({"archives": [asdict(info) for info in found], "failed": batch.failed}))
    elif found:
        _print(found)
    return batch.code


def _info(path: Path, reader: archive.Reader) -> Info:
    sections = reader.sections
    dtypes: dict[str, Share] = {}
    for section, stored in zip(sections, _record_sizes(reader), strict=True):
        label = section.dtype or _KINDS[section.kind]
        dtypes.setdefault(label, Share()).add(Share(1, section.size, stored))
    rest = reader.stored - sum(share.stored for share in dtypes.values())
    dtypes[_INDEX] = Share(0, 0, rest)
    return Info(
        archive=str(path),
        original=reader.size,
        stored=reader.stored,
        sections=len(sections),
        blocks=reader.blocks,
        sha256=reader.sha256.hex(),
        dtypes=dtypes,
    )


def _record_sizes(reader: archive.Reader) -> list[int]:
    """The stored bytes of each section: records lie one after another, and the index after the last."""
    sections = reader.sections
    end = reader.stored - _TAIL - _SECTION_ENTRY * len(sections) - _BLOCK_ENTRY * reader.blocks
    starts = [section.record for section in sections]
    return [stop - start for start, stop in pairwise([*starts, end])]


def _print(found: list[Info]) -> None:
    files = [(info.archive, info.original, info.stored) for info in found]
    total: dict[str, Share] = {}
    for info in found:
        for label, share in info.dtypes.items():
            total.setdefault(label, Share()).add(share)
    if len(found) > 1:
        files.append(("all", sum(info.original for info in found), sum(info.stored for info in found)))
    _table("archive", files)
    say()
    _table("by dtype", sorted((label, share.original, share.stored) for label, share in total.items()))
    if len(found) == 1:
        say()
        say(f"{found[0].sections} sections, {found[0].blocks} blocks")
        say(f"SHA-256 of the original {found[0].sha256}")


def _table(head: str, rows: Iterable[tuple[str, int, int]]) -> None:
    lines = [(head, "original", "stored", "of original", "saved")]
    for name, original, stored in rows:
        saved = percent(original - stored, original)
        lines.append((name, size(original), size(stored), percent(stored, original), saved))
    for line in columns(lines, "lrrrr"):
        say(line)
