"""The threads that decode, and the way their results come back to the event loop.

Waking the event loop takes as long as much of a decode. So of what nobody waits for it is told when it looks
next, or once there is nothing else to do.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import trio

Work = Callable[[], None]
Done = Callable[[Exception | None], None]

# Seconds until the event loop is told of what it does not ask for.
_LATE = 0.1


@dataclass(slots=True, eq=False)
class Job:
    """`work` for a thread, and what is `done` on the event loop then. If it is `wanted`, somebody waits."""

    work: Work
    done: Done
    wanted: bool
    error: Exception | None = None


class DecodePool:
    """`threads` threads for what requests wait for, and as many for what is decoded ahead of them.

    So a page of a small file does not wait behind what a large one will need: the processors are shared
    between the two by the kernel. Belongs to the event loop that it is made in.
    """

    def __init__(self, threads: int) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._closed = False
        self._finished: deque[Job] = deque()
        self._wanted: SimpleQueue[Job | None] = SimpleQueue()
        self._ahead: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            (threading.Thread(target=self._run, args=(jobs,), name=f"decode-{number}", daemon=True), jobs)
            for number in range(threads)
            for jobs in (self._wanted, self._ahead)
        ]
        for thread, _ in self._threads:
            thread.start()

    def submit(self, work: Work, done: Done, *, ahead: bool = False) -> Job:
        """Runs `work` in a thread, then `done` on the event loop with what `work` raised.

        If it is `ahead`, nobody waits for it yet.
        """
        job = Job(work, done, not ahead)
        (self._ahead if ahead else self._wanted).put(job)
        return job

    def want(self, job: Job) -> None:
        """Somebody waits for the job from now on. It may be done when this returns."""
        job.wanted = True
        self.settle()

    def settle(self) -> None:
        """Does what is to be done of jobs that threads have finished."""
        while self._finished:
            job = self._finished.popleft()
            job.done(job.error)

    async def run(self, work: Work) -> None:
        """Runs `work` in a thread, waits for it and raises what it raised."""
        finished = trio.Event()
        raised: list[Exception | None] = []

        def done(error: Exception | None) -> None:
            raised.append(error)
            finished.set()

        self.submit(work, done)
        await finished.wait()
        if raised[0] is not None:
            raise raised[0]

    def close(self) -> None:
        """Waits for the threads to end; blocks. What was not begun is not done."""
        self._closed = True
        for _, jobs in self._threads:
            jobs.put(None)
        for thread, _ in self._threads:
            thread.join()
        self.settle()

    def _run(self, jobs: "SimpleQueue[Job | None]") -> None:
        while True:
            try:
                job = jobs.get(timeout=_LATE if self._finished else None)
            except Empty:
                self._tell()
                continue
            if job is None:
                return
            if self._closed:
                continue
            try:
                job.work()
            except Exception as raised:
                job.error = raised
            # In this order, so that whoever sets `wanted` either finds it here or is told.
            self._finished.append(job)
            if job.wanted:
                self._tell()
            del job

    def _tell(self) -> None:
        self._loop.run_sync_soon(self.settle, idempotent=True)
