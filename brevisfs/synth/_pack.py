"""Packing a file: parse, plan section by section, encode blocks, write, in bounded memory.

Plans and blocks are made in a pool of threads (native code runs without the GIL); the calling
thread alone reads the blocks, in order, hashes them and writes. What is written depends on the
source and the arguments, never on the pool.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from brevisfs import _native, safetensors
from brevisfs.archive import Ref, Writer
from brevisfs.errors import BrevisError
from brevisfs.synth._learn import learn
from brevisfs.synth._plan import Plan, synthesize, tied
from brevisfs.synth._prior import Prior
from brevisfs.synth._profile import Profile
from brevisfs.synth._search import Strategy
from brevisfs.synth._sections import Cut, sections
from brevisfs.synth._source import WHOLE_BYTES
from brevisfs.synth._ties import Tie, ties

Progress = Callable[[int, int], None]
"""Called with the bytes done and their total."""

REFERENCE_GAIN = 0.97
"""A reference takes at most this share of what its section takes alone: to read it, both are decoded."""

MOST_PLANS = 4
"""Sections planned ahead at most: each takes some 100 MB while it is looked at."""

_WRITTEN = "it was written to while it was packed; pack it again when that is done"


class SourceChanged(BrevisError):
    """The file was written to while it was packed."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """What came of a pack: sizes in bytes, the SHA-256 of the original, and how many sections it has."""

    original: int
    stored: int
    sha256: bytes
    sections: int


Bytes = npt.NDArray[np.uint8]


class _FileSource:
    """Bytes of a file by pread, safe from many threads; few are read at once and kept, if so wanted."""

    def __init__(self, fd: int, offset: int, nbytes: int, keep: bool = False) -> None:
        self._fd, self._offset, self.nbytes = fd, offset, nbytes
        self._keep = keep and nbytes <= WHOLE_BYTES
        self._kept: Bytes | None = None

    def read(self, lo: int, hi: int) -> Bytes:
        """Bytes `lo` to `hi`. Raises SourceChanged if the file has become shorter."""
        if not self._keep:
            return self._fresh(lo, hi)
        if self._kept is None:
            self._kept = self._fresh(0, self.nbytes)
        return self._kept[lo:hi]

    def _fresh(self, lo: int, hi: int) -> Bytes:
        data, done = np.empty(hi - lo, np.uint8), 0
        while done < hi - lo:
            more = os.preadv(self._fd, [data[done:].data], self._offset + lo + done)
            if not more:
                raise SourceChanged(f"the file ends at byte {self._offset + lo + done} now; {_WRITTEN}")
            done += more
        return data


class _Differences:
    """The bytes of one source xored with those of another as long."""

    def __init__(self, first: _FileSource, second: _FileSource) -> None:
        self._first, self._second, self.nbytes = first, second, first.nbytes

    def read(self, lo: int, hi: int) -> Bytes:
        """Bytes `lo` to `hi`."""
        return self._first.read(lo, hi) ^ self._second.read(lo, hi)


def pack(
    source_fd: int,
    out_fd: int,
    *,
    profile: Profile = Profile.BALANCED,
    jobs: int = 1,
    progress: Progress | None = None,
    budget: int | None = None,
    prior: Prior | None = None,
) -> PackReport:
    """Write the archive of a safetensors file to `out_fd`, which is at its start and empty.

    `budget` is how many expansions each section's search has, None as many as seem to pay. Without a
    `prior` the file's own is learnt if a search comes to need one. Uses `jobs` threads beside the
    caller's. Raises NotSafetensors before anything is written, SourceChanged if the file changes
    meanwhile, OSError. Nothing is synced.
    """
    before = os.fstat(source_fd)
    layout = _layout(source_fd, before.st_size)
    writer = Writer(lambda data: _write_all(out_fd, data), before.st_size)
    digest = hashlib.sha256()
    count = done = 0
    with ThreadPoolExecutor(jobs) as pool:
        planner = _Planner(source_fd, layout, profile, Strategy(budget), prior)
        tasks = _Tasks(pool, planner, jobs, digest.update)
        try:
            for made in tasks.run(sections(layout)):
                if isinstance(made, _Encoded):
                    writer.add_block(made.payload, made.checksum)
                    done += made.nbytes
                    if progress is not None:
                        progress(done, before.st_size)
                else:
                    cut, plan = made
                    count += 1
                    writer.begin_section(
                        cut.kind,
                        cut.dtype,
                        cut.offset,
                        plan.bits,
                        plan.count,
                        plan.block,
                        plan.wire,
                        plan.shared,
                        plan.ref,
                        plan.target,
                    )
        finally:
            pool.shutdown(cancel_futures=True)
    after = os.fstat(source_fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceChanged(_WRITTEN)
    writer.finish(digest.digest())
    return PackReport(before.st_size, writer.stored, digest.digest(), count)


def learn_prior(source_fd: int, *, profile: Profile = Profile.BALANCED) -> Prior:
    """The prior of a safetensors file. Raises NotSafetensors, SourceChanged."""
    layout = _layout(source_fd, os.fstat(source_fd).st_size)
    cuts = list(sections(layout))
    return learn(cuts, lambda cut: _FileSource(source_fd, cut.offset, cut.nbytes), profile)


def _layout(fd: int, size: int) -> safetensors.Layout:
    whole = _FileSource(fd, 0, size)
    return safetensors.parse(size, lambda offset, length: whole.read(offset, offset + length).tobytes())


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A block as it is stored; `nbytes` are those of the original."""

    payload: bytes
    checksum: int
    nbytes: int


class _Planner:
    """Plans the sections of one file; safe from many threads."""

    def __init__(
        self, fd: int, layout: safetensors.Layout, profile: Profile, strategy: Strategy, prior: Prior | None
    ) -> None:
        self._fd, self._layout, self._profile, self._strategy = fd, layout, profile, strategy
        self._prior = prior
        self._learning = threading.Lock()

    def plan(self, cut: Cut, source: _FileSource) -> Plan:
        """The plan for a section of these bytes."""
        return synthesize(
            source,
            cut.dtype,
            cut.shape,
            self._profile,
            cut.block,
            strategy=self._strategy,
            prior=self._learnt,
        )

    def _learnt(self) -> Prior:
        with self._learning:
            if self._prior is None:
                self._prior = learn(list(sections(self._layout)), self.source, self._profile)
            return self._prior

    def plan_near(self, cut: Cut, source: _FileSource, other: Cut, number: int, target: Future[Plan]) -> Plan:
        """The plan for a section much like `other`, section `number`: as it is, or as the differences."""
        alone, known = self.plan(cut, source), target.result()
        differences = _Differences(source, self.source(other))
        near = synthesize(
            differences,
            cut.dtype,
            cut.shape,
            self._profile,
            known.block,
            strategy=self._strategy,
            prior=self._learnt,
        )
        fits = (near.bits, near.count, near.block) == (known.bits, known.count, known.block)
        if not fits or near.candidates[0].size >= REFERENCE_GAIN * alone.candidates[0].size:
            return alone
        return replace(near, ref=Ref.XOR, target=number)

    def ties(self) -> dict[int, Tie]:
        """The sections that may refer to an earlier one; see `_ties`."""
        return ties(sections(self._layout), self.source)

    def source(self, cut: Cut, keep: bool = False) -> _FileSource:
        """The bytes of a section, kept when they are read if so wanted and they are few."""
        return _FileSource(self._fd, cut.offset, cut.nbytes, keep)


class _Tasks:
    """What the pool has to do, kept a few sections and a few blocks ahead of what is written."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        planner: _Planner,
        jobs: int,
        hashed: Callable[[memoryview], None],
    ) -> None:
        self._pool, self._planner, self._hashed = pool, planner, hashed
        self._ties = planner.ties()
        self._wanted = {tie.target for tie in self._ties.values()}
        self._targets: dict[int, tuple[Cut, Future[Plan]]] = {}
        self._plans_ahead = min(jobs + 1, MOST_PLANS)
        self._blocks_ahead = 2 * jobs + 2

    def run(self, cuts: Iterator[Cut]) -> Iterator[tuple[Cut, Plan] | _Encoded]:
        """Each section's plan, then its blocks, in the order of the file."""
        blocks: deque[tuple[Cut, Plan] | Future[_Encoded]] = deque()
        for cut, source, plan in self._plans(cuts):
            blocks.append((cut, plan))
            for block in self._encode(cut, source, plan):
                blocks.append(block)
                while len(blocks) > self._blocks_ahead:
                    yield _made(blocks.popleft())
        while blocks:
            yield _made(blocks.popleft())

    def _plans(self, cuts: Iterator[Cut]) -> Iterator[tuple[Cut, _FileSource, Plan]]:
        ahead: deque[tuple[Cut, _FileSource, Future[Plan] | Tie]] = deque()
        for number, cut in enumerate(cuts):
            source = self._planner.source(cut, keep=True)
            ahead.append((cut, source, self._begun(number, cut, source)))
            if len(ahead) > self._plans_ahead:
                yield self._planned(*ahead.popleft())
        while ahead:
            yield self._planned(*ahead.popleft())

    def _begun(self, number: int, cut: Cut, source: _FileSource) -> Future[Plan] | Tie:
        tie = self._ties.get(number)
        if tie is None:
            plan = self._pool.submit(self._planner.plan, cut, source)
            if number in self._wanted:
                self._targets[number] = (cut, plan)
            return plan
        if tie.equal:
            return tie
        # The pool takes tasks in order, so what this one waits for has been begun.
        other, target = self._targets[tie.target]
        return self._pool.submit(self._planner.plan_near, cut, source, other, tie.target, target)

    def _planned(
        self, cut: Cut, source: _FileSource, begun: Future[Plan] | Tie
    ) -> tuple[Cut, _FileSource, Plan]:
        if isinstance(begun, Tie):
            return cut, source, tied(self._targets[begun.target][1].result(), begun.target)
        return cut, source, begun.result()

    def _encode(self, cut: Cut, source: _FileSource, plan: Plan) -> Iterator[Future[_Encoded]]:
        program = _native.Program(plan.wire, plan.shared, plan.bits, plan.count, plan.block, plan.classes)
        target = None if plan.ref == Ref.NONE else self._planner.source(self._targets[plan.target][0])
        step = plan.block * plan.bits // 8
        for index, lo in enumerate(range(0, cut.nbytes, step)):
            hi = min(cut.nbytes, lo + step)
            data = source.read(lo, hi)
            self._hashed(data.data)
            other = None if target is None else target.read(lo, hi)
            yield self._pool.submit(_encode_block, program, index, data, other)


def _made(entry: tuple[Cut, Plan] | Future[_Encoded]) -> tuple[Cut, Plan] | _Encoded:
    return entry.result() if isinstance(entry, Future) else entry


def _encode_block(program: _native.Program, index: int, data: Bytes, target: Bytes | None) -> _Encoded:
    """A block encoded, as what it differs in from a target's block if there is one."""
    coded = data if target is None else data ^ target
    bound = program.encode_bound()
    if len(_room.out) < bound:
        _room.out = np.empty(bound, np.uint8)
    try:
        length = program.encode_block(index, coded, _room.out)
    except _native.NotApplicable:
        raise SourceChanged(_WRITTEN) from None
    return _Encoded(_room.out[:length].tobytes(), _native.checksum(data), len(data))


class _Room(threading.local):
    """A thread's room for a block before its length is known."""

    def __init__(self) -> None:
        self.out: Bytes = np.empty(0, np.uint8)


_room = _Room()


def _write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    # No view outlives an error of the write: see the hazard in docs/design/architecture.md.
    done = 0
    with memoryview(data) as whole:
        while done < len(data):
            with whole[done:] as rest:
                done += os.write(fd, rest)
