"""What parts of the search bring: `make bench-synthesis` plans a file's sections with and without them.

Four searches: the whole one; without A*, in the order of the prior alone and dropping no state for the
incumbent; without a prior, all productions as likely; without either. Each with several budgets, so many
expansions a section. Bytes are those of the encoded sections, seconds the processor's for planning them;
for a prior, `learning` says what that took before. The default's own budget (`adaptive`) is shown beside.

With --phases: of each file and of all together, the processor's seconds for the search, for fitting what
it found to all of the words, and for coding them with checksums, with the first of the budgets.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench.report import Figure, Report
from brevisfs import _native, safetensors
from brevisfs.synth import Memory, Plan, Prior, Profile, Strategy, learn_prior, synthesize
from brevisfs.synth._plan import fit, look_up
from brevisfs.synth._sections import Cut, sections

BUDGETS = (1, 32, 256)
COLUMNS = {
    "search": 12,
    "budget": 10,
    "bytes": 12,
    "of raw": 8,
    "seconds": 9,
    "expanded": 9,
    "told": 8,
    "dropped": 8,
}


PHASES = {
    "file": 46,
    "sections": 9,
    "search": 8,
    "fitting": 8,
    "coding": 8,
    "search/coding": 14,
    "bytes": 12,
    "of raw": 8,
}


@dataclass(frozen=True)
class Search:
    """A search with parts left out."""

    name: str
    guided: bool
    prior: bool


SEARCHES = (
    Search("full", guided=True, prior=True),
    Search("no A*", guided=False, prior=True),
    Search("no prior", guided=True, prior=False),
    Search("neither", guided=False, prior=False),
)


@dataclass
class Tally:
    """What came of all sections."""

    original: int = 0
    stored: int = 0
    seconds: float = 0.0
    expanded: int = 0
    told: int = 0
    dropped: int = 0

    def row(self, search: str, budget: str) -> dict[str, Figure]:
        """A row of COLUMNS."""
        return {
            "search": search,
            "budget": budget,
            "bytes": self.stored,
            "of raw": f"{100 * self.stored / self.original:.3f} %",
            "seconds": self.seconds,
            "expanded": self.expanded,
            "told": self.told,
            "dropped": self.dropped,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-synthesis", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="safetensors files")
    parser.add_argument("--profile", default="balanced", choices=[profile.value for profile in Profile])
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--every", type=int, default=1, help="take every so many sections only")
    parser.add_argument("--phases", action="store_true", help="what search, fitting and coding take")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    profile = Profile(options.profile)
    report = Report()
    if options.phases:
        phases(report, options.files, profile, Strategy(options.budgets[0]), options.every)
    else:
        ablation(report, options.files, profile, options.budgets, options.every)
    report.end()
    if options.json:
        report.write(options.json, {"profile": profile.value, "every": options.every})
    return 0


def ablation(report: Report, files: list[Path], profile: Profile, budgets: list[int], every: int) -> None:
    """A table for each file, with a row for each search and budget."""
    for file in files:
        cuts, sources = read(file, every)
        started = time.process_time()
        with file.open("rb") as opened:
            prior = learn_prior(opened.fileno(), profile=profile)
        learning = time.process_time() - started
        title = f"{file.name}, {len(cuts)} sections, {profile}; learning {learning:.2f} s"
        report.begin(file.name, title, COLUMNS)
        adaptive = measured(cuts, sources, profile, Strategy(), prior)
        report.row(adaptive.row("full", "adaptive"))
        for search in SEARCHES:
            for budget in budgets:
                known = prior if search.prior else Prior()
                tally = measured(cuts, sources, profile, Strategy(budget, search.guided), known)
                report.row(tally.row(search.name, str(budget)))


@dataclass
class Phases:
    """What the phases of a pack took, in seconds of the processor."""

    sections: int = 0
    original: int = 0
    stored: int = 0
    search: float = 0.0
    fitting: float = 0.0
    coding: float = 0.0

    def take(self, cut: Cut, source: Memory, profile: Profile, strategy: Strategy) -> None:
        """Plan and code a section."""
        started = time.process_time()
        found = look_up(source, cut.dtype, cut.shape, profile, cut.block, strategy, Prior)
        searched = time.process_time()
        plan = fit(found, cut.shape, profile, cut.block)
        fitted = time.process_time()
        self.stored += stored(plan, source)
        self.coding += time.process_time() - fitted
        self.search += searched - started
        self.fitting += fitted - searched
        self.original += source.nbytes
        self.sections += 1

    def add(self, other: Phases) -> None:
        """Sum up."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def row(self, file: str) -> dict[str, Figure]:
        """A row of PHASES."""
        return {
            "file": file,
            "sections": self.sections,
            "search": self.search,
            "fitting": self.fitting,
            "coding": self.coding,
            "search/coding": self.search / self.coding,
            "bytes": self.stored,
            "of raw": f"{100 * self.stored / self.original:.3f} %",
        }


def phases(report: Report, files: list[Path], profile: Profile, strategy: Strategy, every: int) -> None:
    """A row for each file, and one for all."""
    report.begin("phases", f"{profile}, {strategy.budget} expansions a section", PHASES)
    every_file = Phases()
    for file in files:
        of_file = Phases()
        for cut, source in zip(*read(file, every), strict=True):
            of_file.take(cut, source, profile, strategy)
        report.row(of_file.row(f"{file.parent.name}/{file.name}"))
        every_file.add(of_file)
    report.row(every_file.row("all"))


def read(file: Path, every: int) -> tuple[list[Cut], list[Memory]]:
    """Every so many of a file's sections, and their bytes."""
    data = file.read_bytes()
    layout = safetensors.parse(len(data), lambda offset, length: data[offset : offset + length])
    cuts = list(sections(layout))[::every]
    return cuts, [Memory(data[cut.offset : cut.offset + cut.nbytes]) for cut in cuts]


def measured(
    cuts: Sequence[Cut], sources: Sequence[Memory], profile: Profile, strategy: Strategy, prior: Prior
) -> Tally:
    """All sections planned and encoded."""
    tally = Tally()
    for cut, source in zip(cuts, sources, strict=True):
        started = time.process_time()
        plan = synthesize(
            source, cut.dtype, cut.shape, profile, cut.block, strategy=strategy, prior=lambda: prior
        )
        tally.seconds += time.process_time() - started
        tally.original += source.nbytes
        tally.stored += stored(plan, source)
        tally.expanded += plan.effort.expanded
        tally.told += plan.effort.told
        tally.dropped += plan.effort.dropped
    return tally


def stored(plan: Plan, source: Memory) -> int:
    """Bytes of program, shared parts and payloads, coded with checksums as in a pack."""
    program = _native.Program(plan.wire, plan.shared, plan.bits, plan.count, plan.block, plan.classes)
    payload = bytearray(program.encode_bound())
    step = plan.block * plan.bits // 8
    spent = len(plan.wire) + len(plan.shared)
    for index, lo in enumerate(range(0, source.nbytes, step)):
        data = source.read(lo, min(source.nbytes, lo + step))
        spent += program.encode_block(index, data, payload)
        _native.checksum(data)
    return spent


if __name__ == "__main__":
    sys.exit(main())
