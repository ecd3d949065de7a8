"""brevisfs pack: files into archives, each proved equal to its source before it gets its name."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from brevisfs import archive, safetensors, synth
from brevisfs.cli._console import Progress, cores, percent, progress, say, size
from brevisfs.cli._files import SUFFIX, Batch, Item, as_path, find, opened, output_path, refuse_itself
from brevisfs.cli._mounts import refuse_mount
from brevisfs.cli._output import OutputExists, copy_metadata, new_file
from brevisfs.cli._priors import read_prior
from brevisfs.errors import BrevisError, ExitCode
from brevisfs.store import kept_unmounted


class AlreadyPacked(BrevisError):
    """The file to pack is an archive."""

    exit_code = ExitCode.NOT_SAFETENSORS


@dataclass(frozen=True)
class Packed:
    """One line of the result; sizes in bytes."""

    source: str
    archive: str
    original: int
    stored: int
    sha256: str
    seconds: float


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=as_path)
@click.option("-o", "--output", type=click.Path(), help="Archive, or folder for archives.")
@click.option(
    "--profile",
    type=click.Choice([profile.value for profile in synth.Profile]),
    default=synth.Profile.BALANCED.value,
    show_default=True,
    help="How much decoding speed may be given for size.",
)
@click.option(
    "--budget", type=click.IntRange(min=1), help="Expansions a tensor's search has  [default: as many as pay]"
)
@click.option("--prior", type=as_path, help="Prior to search by (see `brevisfs prior`)  [default: its own]")
@click.option("--jobs", type=click.IntRange(min=1), help="Threads  [default: one a core]")
@click.option("--force", is_flag=True, help="Replace archives that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    files: tuple[Path, ...],
    output: str | None,
    profile: str,
    budget: int | None,
    prior: Path | None,
    jobs: int | None,
    force: bool,
    as_json: bool,
) -> int:
    """Pack safetensors files: X becomes X.brv beside it. The source stays.

    In a folder, files that are not safetensors are skipped, and so are archives that are up to date.
    """
    search = _Search(synth.Profile(profile), budget, read_prior(prior) if prior else None, jobs or cores())
    batch = Batch()
    packed: list[Packed] = []
    skipped: dict[str, int] = {}
    written: set[Path] = set()

    def work(item: Item) -> None:
        target = output_path(item, output, len(files) == 1, item.path.name + SUFFIX)
        reason = item.in_folder and _reason_to_skip(item.path, None if force else target)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            return
        result = _pack(item.path, target, search, force and target not in written)
        written.add(target)
        packed.append(result)
        if not as_json:
            say(_line(result))

    for item in find(files, batch.lost):
        batch.step(item, work)
    _summary(packed, skipped, batch.failed, as_json)
    return batch.code


@dataclass(frozen=True)
class _Search:
    """How files are packed."""

    profile: synth.Profile
    budget: int | None
    prior: synth.Prior | None
    jobs: int

    def pack(self, source_fd: int, out_fd: int, progress: Progress | None) -> synth.PackReport:
        return synth.pack(
            source_fd,
            out_fd,
            profile=self.profile,
            jobs=self.jobs,
            progress=progress,
            budget=self.budget,
            prior=self.prior,
        )


def _pack(source: Path, target: Path, search: _Search, replace: bool) -> Packed:
    started = time.monotonic()
    with opened(source) as source_fd:
        _check_source(source_fd)
        refuse_itself(source, target)
        refuse_mount(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        with kept_unmounted(target.parent), new_file(target, replace=replace) as out_fd:
            before = os.fstat(source_fd)
            with progress(f"packing {source.name}") as bar:
                report = search.pack(source_fd, out_fd, bar)
            with progress(f"checking {source.name}") as bar:
                difference = _first_difference(source_fd, out_fd, search.jobs, bar)
            _judge(difference, before, os.fstat(source_fd))
            copy_metadata(source_fd, out_fd)
    seconds = round(time.monotonic() - started, 3)
    return Packed(str(source), str(target), report.original, report.stored, report.sha256.hex(), seconds)


def _check_source(fd: int) -> None:
    if archive.is_archive(fd):
        raise AlreadyPacked("it is an archive already")
    safetensors.parse(os.fstat(fd).st_size, lambda offset, length: os.pread(fd, length, offset))


def _first_difference(source_fd: int, archive_fd: int, jobs: int, bar: Progress | None) -> int | None:
    """Decodes the whole archive; the offset of the first piece that is not the source's, None if all are."""
    reader = archive.Reader(archive_fd)
    for offset, data in archive.decoded(reader, jobs):
        if data.tobytes() != os.pread(source_fd, len(data), offset):
            return offset
        if bar:
            bar(offset + len(data), reader.size)
    return None if reader.size == os.fstat(source_fd).st_size else reader.size


def _judge(difference: int | None, before: os.stat_result, after: os.stat_result) -> None:
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise synth.SourceChanged("it was written to while it was packed; pack it again when that is done")
    if difference is not None:
        raise archive.Mismatch(f"the archive differs near byte {difference}, and was not kept; report this")


def _reason_to_skip(path: Path, target: Path | None) -> str | None:
    """Why a file found in a folder is left alone, if it is; OutputExists if its archive is out of date."""
    with opened(path) as fd:
        try:
            _check_source(fd)
        except AlreadyPacked:
            return "archive"
        except safetensors.NotSafetensors:
            return "not safetensors"
        if target is None or not os.path.lexists(target):
            return None
        return _if_current(os.fstat(fd), target)


def _if_current(source: os.stat_result, target: Path) -> str:
    # pack gives an archive its source's time, so any other time means another state of the source.
    with opened(target) as fd:
        if os.fstat(fd).st_mtime_ns == source.st_mtime_ns and archive.original_length(fd) == source.st_size:
            return "packed already"
    raise OutputExists(f"{target} is of another state of this file; --force replaces it")


def _line(item: Packed) -> str:
    return f"{item.archive}: {_sizes(item.original, item.stored)}, {item.seconds:.1f} s"


def _sizes(original: int, stored: int) -> str:
    return f"{size(original)} in {size(stored)}, {percent(original - stored, original)} saved"


def _summary(packed: list[Packed], skipped: dict[str, int], failed: int, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"packed": [asdict(item) for item in packed], "skipped": skipped, "failed": failed}))
        return
    if len(packed) + sum(skipped.values()) + failed < 2:
        return
    original = sum(item.original for item in packed)
    stored = sum(item.stored for item in packed)
    parts = [f"{len(packed)} packed, {_sizes(original, stored)}"]
    parts += [f"{count} skipped ({reason})" for reason, count in sorted(skipped.items())]
    say("; ".join(parts + ([f"{failed} failed"] if failed else [])))
