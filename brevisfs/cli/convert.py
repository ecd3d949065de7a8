"""brevisfs convert: all models of a folder into archives, in place."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from brevisfs import safetensors, synth
from brevisfs.cli._console import cores, percent, progress, say, size
from brevisfs.cli._files import Batch, Item, as_path
from brevisfs.recompress import offline
from brevisfs.recompress.estimate import estimate
from brevisfs.store import Session, Store, exclusive


@dataclass(frozen=True)
class Converted:
    """One line of the result; sizes in bytes."""

    file: str
    original: int
    stored: int
    seconds: float


@click.command()
@click.argument("store", type=as_path)
@click.option(
    "--profile",
    type=click.Choice([profile.value for profile in synth.Profile]),
    default=synth.Profile.BALANCED.value,
    show_default=True,
    help="How much decoding speed may be given for size.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Threads  [default: one a core]")
@click.option("--dry-run", is_flag=True, help="Tell from samples what it would save, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(store: Path, profile: str, jobs: int | None, dry_run: bool, as_json: bool) -> int:
    """Make a store of the folder STORE: each model in it, X, becomes X.brv.

    Each archive is decoded and compared before it takes its model's place, so that it can be interrupted at
    any time, and goes on where it was when it is called again. Other files stay as they are.
    """
    batch = Batch()
    done: list[Converted] = []
    kept: list[str] = []
    with ExitStack() as held:
        if dry_run:
            convert, models = _estimator(held.enter_context(Store(store)), synth.Profile(profile))
        else:
            convert, models = _converter(
                held.enter_context(exclusive(store)), synth.Profile(profile), jobs or cores()
            )
        for found in models:

            def work(item: Item, found: offline.Found = found) -> None:
                started = time.monotonic()
                try:
                    stored = convert(found)
                except (safetensors.NotSafetensors, synth.SourceChanged):
                    stored = None
                if stored is None:
                    kept.append(found.path)
                    return
                seconds = round(time.monotonic() - started, 3)
                done.append(Converted(found.path, found.entry.size, stored, seconds))
                if not as_json:
                    say(f"{found.path}: {_sizes(found.entry.size, stored)}, {seconds:.1f} s")

            batch.step(Item(store / found.path, Path(found.path), in_folder=True), work)
    _summary(done, kept, batch.failed, dry_run, as_json)
    return batch.code


_Convert = Callable[[offline.Found], int | None]


def _converter(
    session: Session, profile: synth.Profile, jobs: int
) -> tuple[_Convert, Iterator[offline.Found]]:
    def convert(found: offline.Found) -> int | None:
        with progress(found.path) as bar:
            return offline.convert(session, found, profile, jobs, bar)

    offline.tidy(session)
    return convert, offline.models(session.changes.store)


def _estimator(store: Store, profile: synth.Profile) -> tuple[_Convert, Iterator[offline.Found]]:
    def convert(found: offline.Found) -> int | None:
        with offline.opened(store, found) as file:
            return estimate(file, profile)

    return convert, offline.models(store)


def _sizes(original: int, stored: int) -> str:
    return f"{size(original)} in {size(stored)}, {percent(original - stored, original)} saved"


def _summary(done: list[Converted], kept: list[str], failed: int, dry_run: bool, as_json: bool) -> None:
    if as_json:
        converted = [asdict(item) for item in done]
        say(json.dumps({"converted": converted, "kept": kept, "failed": failed, "estimated": dry_run}))
        return
    original, stored = sum(item.original for item in done), sum(item.stored for item in done)
    verb = "would be converted, about" if dry_run else "converted,"
    parts = [f"{len(done)} {verb} {_sizes(original, stored)}"]
    parts += [f"{len(kept)} stay as they are"] if kept else []
    parts += [f"{failed} failed"] if failed else []
    say("; ".join(parts))
