"""The threads that decode, and the way their results come back to the event loop."""

import threading
from collections import deque
from collections.abc import Callable

import trio

_Work = Callable[[], None]
_Done = Callable[[Exception | None], None]


class DecodePool:
    """`threads` threads that decode what is waited for or will be, and one for the former alone.

    So a page of a small file does not wait behind what a large one will need. Belongs to the event loop
    that it is made in.
    """

    def __init__(self, threads: int) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._wanted: deque[tuple[_Work, _Done]] = deque()
        self._ahead: deque[tuple[_Work, _Done]] = deque()
        self._change = threading.Condition()
        self._free = threads
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{number}", daemon=True)
            for number in range(threads + 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: _Work, done: _Done, *, ahead: bool = False) -> None:
        """Runs `work` in a thread, then `done` on the event loop with what `work` raised.

        What nobody waits for yet is said to be `ahead`, and lets all other work pass.
        """
        with self._change:
            (self._ahead if ahead else self._wanted).append((work, done))
            self._change.notify()

    async def run(self, work: _Work) -> None:
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
        """Waits for the threads to end; blocks. What was read ahead and not begun is not done."""
        with self._change:
            self._closed = True
            self._ahead.clear()
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                while not (self._wanted or (self._ahead and self._free)):
                    if self._closed:
                        return
                    self._change.wait()
                ahead = not self._wanted
                self._free -= ahead
                work, done = (self._ahead if ahead else self._wanted).popleft()
            error: Exception | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            self._loop.run_sync_soon(done, error)
            del work, done, error
            with self._change:
                self._free += ahead
