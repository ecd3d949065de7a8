"""The threads that decode, and the way their results come back to the event loop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import trio


class DecodePool:
    """A fixed number of threads. Belongs to the event loop that it is made in."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, "decode")
        self._loop = trio.lowlevel.current_trio_token()

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Runs `work` in a thread, then `done` on the event loop with what `work` raised."""
        self._executor.submit(self._run, work, done)

    async def run(self, work: Callable[[], None]) -> None:
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
        """Waits for the threads to end; blocks."""
        self._executor.shutdown()

    def _run(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        self._loop.run_sync_soon(done, error)
