"""The threads that decode, and the way their results come back to the event loop.

Waking the event loop takes as long as much of a decode. So of what nobody waits for it is told when it looks
next, or once there is nothing else to do.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import trio

from brevisfs._native import ReadJob, ReadPool

Work = Callable[[], None]
Done = Callable[[Exception | None], None]

# Seconds until the event loop is told of what it does not ask for.
_LATE = 0.1


@dataclass(slots=True, eq=False)
class Job:
    """Something for a thread, and what is `done` on the event loop then. If it is `wanted`, somebody waits.

    It is `work`, or a `read` that needs no interpreter.
    """

    work: Work
    done: Done
    wanted: bool
    error: Exception | None = None
    read: ReadJob | None = None


class DecodePool:
    """`threads` threads for what requests wait for, and as many for what is decoded ahead of them.

    So a page of a small file does not wait behind what a large one will need: the processors are shared
    between the two by the kernel. What is decoded ahead is for threads without the interpreter, which the
    event loop holds for most of each answer; as many with it do what those cannot. Belongs to the event loop
    that it is made in.
    """

    def __init__(self, threads: int) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._closed = False
        self._finished: deque[Job] = deque()
        self._wanted: SimpleQueue[Job | None] = SimpleQueue()
        self._ahead: SimpleQueue[Job | None] = SimpleQueue()
        self._count = threads
        self._reading: list[Job] = []
        self._told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._readers = ReadPool(threads, self._told)
        self._threads = [
            (threading.Thread(target=self._run, args=(jobs,), name=f"decode-{number}", daemon=True), jobs)
            for number in range(threads)
            for jobs in (self._wanted, self._ahead)
        ]
        for thread, _ in self._threads:
            thread.start()
        trio.lowlevel.spawn_system_task(self._listen)

    def submit(self, work: Work, done: Done, *, ahead: bool = False, read: ReadJob | None = None) -> Job:
        """Runs `work` in a thread, then `done` on the event loop with what `work` raised.

        If it is `ahead`, nobody waits for it yet. If there is a `read`, that is done instead, and `work` only
        if it fails, to tell why.
        """
        job = Job(work, done, not ahead, read=read)
        if read is not None:
            self._reading.append(job)
            self._readers.add(read)
        else:
            (self._ahead if ahead else self._wanted).put(job)
        return job

    def want(self, job: Job) -> None:
        """Somebody waits for the job from now on. It may be done when this returns."""
        job.wanted = True
        if job.read is not None:
            job.read.is_done(want=True)
        self.settle()

    def settle(self) -> None:
        """Does what is to be done of jobs that threads have finished."""
        for job in self._read():
            assert job.read is not None
            if job.read.failed:
                job.read = None
                (self._wanted if job.wanted else self._ahead).put(job)
            else:
                job.done(None)
        while self._finished:
            job = self._finished.popleft()
            job.done(job.error)

    def _read(self) -> list[Job]:
        """The reads that have been done since."""
        done: list[Job] = []
        pending = 0
        for job in self._reading:
            assert job.read is not None
            if job.read.is_done():
                done.append(job)
            else:
                # They are begun in order, so no more than there are threads come before one that is done.
                pending += 1
                if pending == self._count:
                    break
        for job in done:
            self._reading.remove(job)
        return done

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
        self._readers.close()
        self.settle()
        trio.lowlevel.notify_closing(self._told)

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

    async def _listen(self) -> None:
        try:
            while not self._closed:
                await trio.lowlevel.wait_readable(self._told)
                os.eventfd_read(self._told)
                self.settle()
        except trio.ClosedResourceError:
            pass
        finally:
            os.close(self._told)

    def _tell(self) -> None:
        self._loop.run_sync_soon(self.settle, idempotent=True)
