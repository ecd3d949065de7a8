"""The threads that decode, and the way their results come back to the event loop."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import trio

Work = Callable[[], None]
Done = Callable[[Exception | None], None]


class DecodePool:
    """`threads` threads for what requests wait for, and as many for what is decoded ahead of them.

    So a page of a small file does not wait behind what a large one will need: the processors are shared
    between the two by the kernel. Belongs to the event loop that it is made in.
    """

    def __init__(self, threads: int) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._closed = False
        self._wanted: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._ahead: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._threads = [
            (threading.Thread(target=self._run, args=(jobs,), name=f"decode-{number}", daemon=True), jobs)
            for number in range(threads)
            for jobs in (self._wanted, self._ahead)
        ]
        for thread, _ in self._threads:
            thread.start()

    def submit(self, work: Work, done: Done, *, ahead: bool = False) -> None:
        """Runs `work` in a thread, then `done` on the event loop with what `work` raised."""
        (self._ahead if ahead else self._wanted).put((work, done))

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

    def _run(self, jobs: "SimpleQueue[tuple[Work, Done] | None]") -> None:
        while (job := jobs.get()) is not None:
            if self._closed:
                continue
            work, done = job
            error: Exception | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            self._loop.run_sync_soon(done, error)
            del job, work, done, error
