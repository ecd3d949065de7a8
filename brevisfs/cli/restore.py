"""brevisfs restore: all archives of a store into the plain files that they hold, in place."""

import json
from contextlib import ExitStack
from pathlib import Path

import click

from brevisfs.cli._console import cores, progress, say, size
from brevisfs.cli._files import Batch, Item, as_path
from brevisfs.recompress import offline
from brevisfs.store import Store, exclusive


@click.command()
@click.argument("store", type=as_path)
@click.option("--jobs", type=click.IntRange(min=1), help="Threads  [default: one a core]")
@click.option("--dry-run", is_flag=True, help="Tell what it would take, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(store: Path, jobs: int | None, dry_run: bool, as_json: bool) -> int:
    """Make a plain folder of STORE: each archive in it, X.brv, becomes X.

    What is unpacked is compared with the checksum of what was packed before it takes the archive's place. It
    can be interrupted at any time, and goes on where it was when it is called again.
    """
    batch = Batch()
    names: list[str] = []
    plain = stored = 0
    with ExitStack() as held:
        session = None
        if dry_run:
            archives = offline.archives(held.enter_context(Store(store)))
        else:
            session = held.enter_context(exclusive(store))
            offline.tidy(session)
            archives = offline.archives(session.changes.store)
        for found in archives:

            def work(item: Item, found: offline.Found = found) -> None:
                nonlocal plain, stored
                if session is not None:
                    with progress(found.path) as bar:
                        offline.restore(session, found, jobs or cores(), bar)
                names.append(found.path)
                plain += found.entry.size
                stored += found.entry.status.st_size

            batch.step(Item(store / found.path, Path(found.path), in_folder=True), work)
    if as_json:
        result = {"restored": names, "original": plain, "stored": stored, "failed": batch.failed}
        say(json.dumps({**result, "done": not dry_run}))
    else:
        verb = "would be restored" if dry_run else "restored"
        failed = f"; {batch.failed} failed" if batch.failed else ""
        say(f"{len(names)} {verb}, {size(stored)} become {size(plain)}{failed}")
    return batch.code
