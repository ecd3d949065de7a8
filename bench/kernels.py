"""What decoding and encoding cost next to memcpy: `make bench-kernels [ARGS="--quick --peers --json OUT"]`.

All ratios are memcpy's time divided by ours for the same bytes (1 is as fast as memcpy), memcpy being
timed right before, by turns; shown are medians over the rounds, with the least and the greatest. All
memory is warm: inputs, outputs and payloads have been touched before and are used again each round.
One core is one thread, timed by its processor time. Two cores are two threads over the two halves,
against two threads that copy them, on the clock (so only a quiet machine shows what they reach).
Everything decoded is compared with the original, outside the timing; a difference ends the run with
exit code 1.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bench import peers, weights
from bench.coded import (
    Case,
    Numbers,
    Parameters,
    Run,
    Section,
    WrongBytes,
    case,
    copy_runs,
    decode_runs,
    encode_runs,
    encoded,
    information,
    plan_all,
    room_for,
    run,
)
from bench.measure import (
    FEW_ROUNDS,
    SLOW,
    Action,
    Bytes,
    Job,
    Pair,
    Spread,
    Times,
    by_turns,
    copy,
    per_round,
    spread,
)
from bench.report import SPREAD, Figure, Report, machine
from bench.weights import Kinds, Tensor
from brevisfs import _native, cli
from brevisfs.dsl import Encoding, Huffman, Lit, Map, Merge, Rans, Raw, RotR, Tunstall, to_text, to_wire
from brevisfs.synth import Profile

PARTS = ("profiles", "reads", "literals", "kernels", "pack")
READ_BYTES, READS = 4096, 64
PACK_ROUNDS, PACK_BYTES = 3, 24_000_000
QUICK_MB = 0.6


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    kinds: Kinds
    rounds: int
    with_peers: bool
    report: Report
    pair: Pair
    pool: ThreadPoolExecutor
    planned: dict[tuple[str, Profile], Case] = field(default_factory=dict)

    def case(self, kind: str, profile: Profile) -> Case:
        """The tensors of a kind under a profile, planned once."""
        if (kind, profile) not in self.planned:
            self.planned[kind, profile] = plan_all(self.kinds[kind], profile, self.pool)
        return self.planned[kind, profile]


class PackFailed(Exception):
    """The pack command did not succeed."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    limit = int((QUICK_MB if options.quick else options.limit) * 1e6)
    report = Report()
    kinds = _kinds(options, limit)
    rounds = 2 if options.quick else max(1, options.rounds)
    try:
        report.say(" · ".join(f"{name} {value}" for name, value in machine().items()))
        report.say(
            f"{rounds} rounds ({FEW_ROUNDS} of what takes over {SLOW} s), all memory warm; "
            "ratios are memcpy's time / own, median (least..greatest)"
        )
        if options.quick:
            report.say("quick: so few bytes that only their exactness is worth a look, not the times")
        with Pair() as pair, ThreadPoolExecutor(2) as pool:
            bench = Bench(kinds, rounds, options.peers, report, pair, pool)
            for part in PARTS:
                if part in options.parts:
                    _PARTS[part](bench)
    except (WrongBytes, PackFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        report.end()
        if options.json:
            report.write(options.json, {"rounds": rounds, "limit": limit, "quick": options.quick})
    report.say("\nall exact: everything decoded was equal to what was encoded, in every round")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-kernels", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", type=Path, help="a .safetensors file, or a folder of them, instead")
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"), help="where the model is kept")
    parser.add_argument("--limit", type=float, default=12, help="MB of each dtype (BF16 of the model: all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", metavar="KIND", help="some dtypes, as the first column has them")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--peers", action="store_true", help="zipnn and zstandard too, where installed")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--quick", action="store_true", help=f"made data, {QUICK_MB} MB of each, 2 rounds")
    return parser


def _kinds(options: argparse.Namespace, limit: int) -> Kinds:
    if options.files:
        files = sorted(options.files.glob("**/*.safetensors")) if options.files.is_dir() else [options.files]
        kinds = weights.of_files(files, limit)
    elif options.quick:
        kinds = weights.made(limit)
    else:
        kinds = weights.of_model(options.cache, limit)
    found = {kind: tensors for kind, tensors in kinds.items() if tensors and kind in (options.only or kinds)}
    if not found:
        raise SystemExit(f"bench: nothing to measure; there is {', '.join(kinds) or 'no tensor of 4 KiB'}")
    return found


def profiles(bench: Bench) -> None:
    """Each dtype under each profile, decoded and encoded."""
    columns = {
        "dtype": 9,
        "MB": 5,
        "profile": 9,
        "direction": 9,
        "GB/s": 6,
        "one core": SPREAD,
        "unchecked": SPREAD,
    }
    columns |= {"two cores": SPREAD, "two/one": SPREAD, "bits": 7, "entropy": 7}
    bench.report.begin(
        "profiles",
        "Decoding and encoding (with checksums, but for the column unchecked); bits stored a number, all "
        "included, beside the order-0 entropy of the fields stored",
        columns,
    )
    for kind, tensors in bench.kinds.items():
        for profile in Profile:
            for row in _profile_rows(bench, bench.case(kind, profile)):
                bench.report.row({"dtype": kind, "profile": profile.value, **row})
        if bench.with_peers:
            for row in _peer_rows(bench, tensors):
                bench.report.row({"dtype": kind, **row})


def _profile_rows(bench: Bench, made: Case) -> Iterator[dict[str, Figure]]:
    times = by_turns(_jobs(bench, made), bench.rounds)
    programs = sorted({to_text(section.node) for section in made.sections})
    for direction in ("decode", "encode"):
        yield {
            "MB": f"{made.nbytes / 1e6:.1f}",
            "direction": direction,
            **_ratios(times, direction, made.nbytes),
            "unchecked": times[direction + " unchecked"].one_core(),
            "bits": made.bits,
            "entropy": made.entropy,
            "programs": "; ".join(programs),
        }


def _ratios(times: dict[str, Times], direction: str, nbytes: int) -> dict[str, Figure]:
    one, two = times[direction], times[direction + " two"]
    return {
        "GB/s": nbytes / 1e9 / spread(one.own_processor).median,
        "one core": one.one_core(),
        "two cores": two.two_cores(),
        "two/one": per_round(one.own, two.own),
    }


def _jobs(bench: Bench, made: Case) -> dict[str, Job]:
    whole, halves = made.runs(0, 1), [made.runs(0, 2), made.runs(1, 2)]
    rooms = [room_for(made.sections), room_for(made.sections)]

    def two(work: Callable[[list[Run], bytearray], None]) -> Action:
        return bench.pair.both(partial(work, halves[0], rooms[0]), partial(work, halves[1], rooms[1]))

    def decoding(base: Action, action: Action) -> Job:
        return Job(base, action, made.clear, made.check)

    copy_one = partial(copy_runs, whole)
    copy_two = two(lambda runs, room: copy_runs(runs))
    return {
        "decode": decoding(copy_one, partial(decode_runs, whole, True)),
        "decode unchecked": decoding(copy_one, partial(decode_runs, whole, False)),
        "decode two": decoding(copy_two, two(lambda runs, room: decode_runs(runs, True))),
        "encode": Job(copy_one, partial(encode_runs, whole, rooms[0], True)),
        "encode unchecked": Job(copy_one, partial(encode_runs, whole, rooms[0], False)),
        "encode two": Job(copy_two, two(lambda runs, room: encode_runs(runs, room, True))),
    }


def _peer_rows(bench: Bench, tensors: list[Tensor]) -> Iterator[dict[str, Figure]]:
    data = np.concatenate([tensor.data for tensor in tensors])
    out, half = np.zeros_like(data), len(data) // 2
    copies = (
        partial(copy, out, data),
        bench.pair.both(partial(copy, out, data[:half]), partial(copy, out[half:], data[half:])),
    )
    bits = weights.element_bits(tensors[0])
    for peer in peers.peers(tensors[0].dtype, bench.pair):
        jobs, stored = peers.contest(peer, data, copies)
        times = by_turns(jobs, bench.rounds)
        for direction in ("decode", "encode"):
            yield {
                "MB": f"{len(data) / 1e6:.1f}",
                "profile": peer.name,
                "direction": direction,
                **_ratios(times, direction, len(data)),
                "bits": stored / len(data) * bits,
            }


def reads(bench: Bench) -> None:
    """Small reads at random in the largest tensor of each dtype."""
    bench.report.begin(
        "reads",
        f"Reads of {READ_BYTES} bytes at random offsets, one core, nothing decoded kept (balanced): time a "
        "touched block / time a block of the whole tensor decoded at once (1 is best, more is slower)",
        {"dtype": 9, "blocks": 7, "a block": SPREAD},
    )
    for kind in bench.kinds:
        section = bench.case(kind, Profile.BALANCED).largest()
        if len(section.spans) > 2:
            cost = _read_cost(section, bench.rounds)
            bench.report.row({"dtype": kind, "blocks": len(section.spans), "a block": cost})


def _read_cost(section: Section, rounds: int) -> Spread:
    size = len(section.tensor.data)
    places = np.random.default_rng(2).integers(0, size // READ_BYTES, READS) * READ_BYTES
    out = np.zeros(READS * READ_BYTES, np.uint8)
    small = [
        run(section, lo, lo + READ_BYTES, out[index * READ_BYTES : (index + 1) * READ_BYTES])
        for index, lo in enumerate(places.tolist())
    ]
    touched = sum(entry.blocks for entry in small) * section.block_bytes / size

    def check() -> None:
        if not all(np.array_equal(entry.out, entry.source) for entry in small):
            raise WrongBytes(f"a small read of tensor {section.tensor.name} differs")

    bulk = partial(decode_runs, case([section]).runs(0, 1), True)
    job = Job(bulk, partial(decode_runs, small, True), lambda: out.fill(0xA5), check)
    times = by_turns({"reads": job}, rounds)["reads"]
    return per_round([own / touched for own in times.own_processor], times.base_processor)


def _largest(tensors: list[Tensor]) -> Tensor:
    return max(tensors, key=lambda tensor: len(tensor.data))


def literals(bench: Bench) -> None:
    """Each way to code exponents, on the same ones."""
    tensors = next((tensors for tensors in bench.kinds.values() if tensors[0].dtype == "BF16"), None)
    if tensors is None:
        return
    tensor = _largest(tensors)
    bench.report.begin(
        "literals",
        f"Exponents of BF16 coded in each way, one table, the rest raw, on {tensor.name}, decoded with "
        "checksums; bits and entropy are of an exponent",
        {
            "literal": 18,
            "one core": SPREAD,
            "unchecked": SPREAD,
            "two cores": SPREAD,
            "bits": 7,
            "entropy": 7,
        },
    )
    exponents = np.bincount(tensor.data.view("<u2") >> 7 & 0xFF, minlength=256).astype(np.uint64)
    for name, section in _exponent_sections(tensor, exponents):
        made = case([section])
        jobs = {name: job for name, job in _jobs(bench, made).items() if name.startswith("decode")}
        times = by_turns(jobs, bench.rounds)
        bench.report.row(
            {
                "literal": name,
                "one core": times["decode"].one_core(),
                "unchecked": times["decode unchecked"].one_core(),
                "two cores": times["decode two"].two_cores(),
                "bits": made.bits - 8,
                "entropy": information(exponents) / made.elements,
            }
        )


def _exponent_sections(tensor: Tensor, exponents: Numbers) -> Iterator[tuple[str, Section]]:
    encodings: dict[str, tuple[Encoding, bytes]] = {
        "huffman 11 bit": (Huffman(5, 11), _native.huffman_tables(exponents[None], 11)),
        "tunstall 11 bit": (Tunstall(11, 12), _native.rans_tables(exponents[None], 12)),
        "rans 32 lanes": (Rans(32, 12), _native.rans_tables(exponents[None], 12)),
    }
    count = len(tensor.data) // 2
    for name, (encoding, table) in encodings.items():
        node = Map(RotR(1), Merge((8, 8), (Lit(encoding), Lit(Raw()))))
        block = min(1 << 16, -(-count // 64) * 64)
        shared = _native.join_shared([table])
        yield name, encoded(tensor, node, Parameters(to_wire(node), shared, 16, count, block, {}))


def kernels(bench: Bench) -> None:
    """The kernels for this CPU against those for any CPU."""
    if _native.cpu() == "scalar":
        bench.report.say("\nscalar kernels are all this run has: nothing to compare them with")
        return
    bench.report.begin(
        "kernels",
        "Scalar kernels (BREVISFS_CPU=scalar), balanced, one core: decoding to memcpy, and to this machine's",
        {"dtype": 9, "scalar": SPREAD, _native.cpu(): SPREAD, "scalar/" + _native.cpu(): SPREAD},
    )
    for kind in bench.kinds:
        made = bench.case(kind, Profile.BALANCED)
        runs = made.runs(0, 1)
        base = partial(copy_runs, runs)
        jobs = {
            "own": Job(base, partial(decode_runs, runs, True), made.clear, made.check),
            "scalar": Job(base, partial(decode_runs, runs, True, _scalar(made)), made.clear, made.check),
        }
        times = by_turns(jobs, bench.rounds)
        own, scalar = times["own"], times["scalar"]
        bench.report.row(
            {
                "dtype": kind,
                "scalar": scalar.one_core(),
                _native.cpu(): own.one_core(),
                "scalar/" + _native.cpu(): per_round(own.own_processor, scalar.own_processor),
            }
        )


def _scalar(made: Case) -> dict[int, _native.Program]:
    before = os.environ.get("BREVISFS_CPU")
    os.environ["BREVISFS_CPU"] = "scalar"
    try:
        return {id(section): section.parameters.program() for section in made.sections}
    finally:
        del os.environ["BREVISFS_CPU"]
        if before is not None:
            os.environ["BREVISFS_CPU"] = before


def pack(bench: Bench) -> None:
    """The whole pack command, on files in memory."""
    kind = "BF16" if "BF16" in bench.kinds else next(iter(bench.kinds))
    tensors = weights.limited(bench.kinds[kind], PACK_BYTES)
    rounds = min(bench.rounds, PACK_ROUNDS)
    bench.report.begin(
        "pack",
        f"All of `brevisfs pack` (search, encode, verify, SHA-256) of {kind}, balanced, on a memory "
        f"filesystem, {rounds} rounds; peers compress only",
        {"what": 16, "one core": SPREAD, "two cores": SPREAD, "two/one": SPREAD, "MB/s one": 9, "stored": 8},
    )
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="brevisfs-bench-", dir=folder) as work:
        source = Path(work) / "model.safetensors"
        source.write_bytes(weights.as_file(tensors))
        data = np.fromfile(source, np.uint8)
        jobs, stored = _pack_jobs(bench, source, data)
        flat = np.concatenate([tensor.data for tensor in tensors])
        if bench.with_peers:
            for peer in peers.peers(tensors[0].dtype, bench.pair):
                theirs, size = peers.contest(peer, flat, (jobs["pack"].base, jobs["pack two"].base))
                jobs[peer.name] = _on_one_core(theirs["encode"])
                jobs[peer.name + " two"] = theirs["encode two"]
                stored[peer.name] = partial(int, size)
        times = by_turns(jobs, rounds, untimed=0)
        for name, size_of in stored.items():
            one, two = times[name], times[name + " two"]
            bench.report.row(
                {
                    "what": name,
                    "one core": one.one_core(),
                    "two cores": two.two_cores(),
                    "two/one": per_round(one.own, two.own),
                    "MB/s one": len(data) / 1e6 / spread(one.own_processor).median,
                    "stored": size_of() / len(data),
                }
            )


def _pack_jobs(
    bench: Bench, source: Path, data: Bytes
) -> tuple[dict[str, Job], dict[str, Callable[[], int]]]:
    target = source.with_suffix(".brv")
    out, half = np.zeros_like(data), len(data) // 2
    copy_one = partial(copy, out, data)
    copy_two = bench.pair.both(partial(copy, out, data[:half]), partial(copy, out[half:], data[half:]))

    def work(jobs: int) -> None:
        arguments = ["pack", str(source), "-o", str(target), "--force", "--jobs", str(jobs), "--json"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = cli.run(arguments)
        if code:
            raise PackFailed(f"brevisfs pack ended with exit code {code}: {said.getvalue()}")

    jobs = {
        "pack": _on_one_core(Job(copy_one, partial(work, 1))),
        "pack two": Job(copy_two, partial(work, 2)),
    }
    return jobs, {"pack": lambda: target.stat().st_size}


def _on_one_core(job: Job) -> Job:
    """The same with the calling thread, and all that it starts, kept on one core."""
    cores = os.sched_getaffinity(0)

    def before() -> None:
        os.sched_setaffinity(0, {min(cores)})
        job.before()

    def after() -> None:
        os.sched_setaffinity(0, cores)
        job.after()

    return Job(job.base, job.action, before, after)


_PARTS: dict[str, Callable[[Bench], None]] = {
    "profiles": profiles,
    "reads": reads,
    "literals": literals,
    "kernels": kernels,
    "pack": pack,
}

if __name__ == "__main__":
    sys.exit(main())
