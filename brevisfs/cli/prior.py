"""brevisfs prior: what was learnt of which programs suit which tensors, to search the next model by."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from brevisfs import synth
from brevisfs.cli._console import columns, say
from brevisfs.cli._files import Batch, Item, as_path, find, opened
from brevisfs.cli._output import new_file
from brevisfs.cli._priors import read_prior

_output = click.option("-o", "--output", type=as_path, help="File to write  [default: standard output]")
_force = click.option("--force", is_flag=True, help="Replace the file if it exists.")


@click.group()
def command() -> None:
    """Learn, show or merge priors.

    A prior says which productions led to good programs in which contexts. With `pack --prior FILE` the
    search goes there first; what it can find stays the same, and an archive has no need of it.
    """


@command.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=as_path)
@_output
@_force
@click.option(
    "--profile",
    type=click.Choice([profile.value for profile in synth.Profile]),
    default=synth.Profile.BALANCED.value,
    show_default=True,
    help="What the models are to be packed for.",
)
def learn(files: tuple[Path, ...], output: Path | None, force: bool, profile: str) -> int:
    """Learn a prior from safetensors files, all of them together."""
    batch = Batch()
    priors: list[synth.Prior] = []

    def work(item: Item) -> None:
        with opened(item.path) as fd:
            priors.append(synth.learn_prior(fd, profile=synth.Profile(profile)))

    for item in find(files, batch.lost):
        batch.step(item, work)
    if not batch.code:
        _write(synth.merged(priors), output, force)
    return batch.code


@command.command()
@click.argument("path", metavar="PRIOR", type=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def show(path: Path, as_json: bool) -> None:
    """Show what a prior has seen: contexts, and in each the productions by how often they were used."""
    prior = read_prior(path)
    if as_json:
        say(json.dumps(json.loads(prior.to_json())))
        return
    say(f"{path}: {sum(sum(seen.values()) for seen in prior.counts.values())} productions")
    rows = [
        (context, ", ".join(f"{production} {count}" for production, count in _falling(seen)))
        for context, seen in sorted(prior.counts.items())
    ]
    for line in columns(rows) if rows else ():
        say(f"  {line}")


@command.command()
@click.argument("paths", metavar="PRIOR…", nargs=-1, required=True, type=as_path)
@_output
@_force
def merge(paths: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Merge priors into one that has seen what each of them has."""
    _write(synth.merged([read_prior(path) for path in paths]), output, force)


def _falling(seen: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(seen.items(), key=lambda entry: (-entry[1], entry[0]))


def _write(prior: synth.Prior, output: Path | None, force: bool) -> None:
    text = prior.to_json()
    if output is None:
        click.echo(text)
        return
    with new_file(output, replace=force) as fd, open(fd, "w", closefd=False) as file:
        file.write(text + "\n")
