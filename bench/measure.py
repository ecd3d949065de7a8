"""Timing for a shared machine: what is compared runs by turns, and only figures of one turn are divided.

What runs on one core is timed by the processor time it takes, which is the time it would take on a quiet
machine; what runs on two only by the clock on the wall.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Action = Callable[[], None]

_libc = ctypes.CDLL(None)  # releases the GIL while it runs
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.memcpy.restype = ctypes.c_void_p


SLOW, FEW_ROUNDS = 0.4, 3
"""Seconds of processor time beyond which a job gets so many rounds at most."""


@dataclass(frozen=True)
class Spread:
    """The median of some figures, and the least and the greatest of them."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Raises statistics.StatisticsError (ValueError) if there are no values."""
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Job:
    """Something to time. `base` is timed right before it; `before` and `after` are not timed."""

    base: Action
    action: Action
    before: Action = lambda: None
    after: Action = lambda: None


@dataclass(frozen=True)
class Times:
    """What each round took: seconds on the clock, and seconds of processor time of all threads."""

    base: list[float]
    own: list[float]
    base_processor: list[float]
    own_processor: list[float]

    def one_core(self) -> Spread:
        """Base to own in processor time: 1 is as fast as the base, less is slower."""
        return per_round(self.base_processor, self.own_processor)

    def two_cores(self) -> Spread:
        """Base to own on the clock."""
        return per_round(self.base, self.own)


def per_round(first: Sequence[float], second: Sequence[float]) -> Spread:
    """first / second, round by round: medians of ratios, because a slow spell slows both of a round.

    Rounds that only one of the two has are left out.
    """
    return spread([a / b for a, b in zip(first, second, strict=False)])


def by_turns(jobs: Mapping[str, Job], rounds: int, untimed: int = 1) -> dict[str, Times]:
    """Runs all jobs one after the other, `untimed` times to warm up and then `rounds` times.

    What was slow to warm up leaves out the rounds after the first few.
    """
    times = {name: Times([], [], [], []) for name in jobs}
    slow: set[str] = set()
    for number in range(-untimed, rounds):
        for name, job in jobs.items():
            if name in slow and number >= FEW_ROUNDS:
                continue
            job.before()
            base, base_processor = seconds(job.base)
            job.before()
            own, own_processor = seconds(job.action)
            job.after()
            if number < 0 and own_processor > SLOW:
                slow.add(name)
            if number >= 0:
                times[name].base.append(base)
                times[name].own.append(own)
                times[name].base_processor.append(base_processor)
                times[name].own_processor.append(own_processor)
    return times


def seconds(action: Action) -> tuple[float, float]:
    """How long the action takes on the clock, and in processor time."""
    started, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - processor


class Pair:
    """Two threads, kept for all rounds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def both(self, first: Action, second: Action) -> Action:
        """An action that runs the two at the same time and ends when both have."""

        def run() -> None:
            for future in [self._pool.submit(first), self._pool.submit(second)]:
                future.result()

        return run


def copy(target: Bytes, source: Bytes) -> None:
    """memcpy."""
    if not target.flags.c_contiguous or not source.flags.c_contiguous or len(target) < len(source):
        raise ValueError(f"{len(source)} bytes cannot be copied in one piece into {len(target)}")
    _libc.memcpy(target.ctypes.data, source.ctypes.data, len(source))
