"""One mount, from its set-up to its end, in this process."""

import gc
import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyfuse3
import trio

from brevisfs.archive import Reader
from brevisfs.fs._checks import check_fuse, check_mountpoint, may_allow_others
from brevisfs.fs._errors import MountFailed
from brevisfs.fs._log import log_to
from brevisfs.fs._notify import notify
from brevisfs.fs._operations import Operations
from brevisfs.fs._options import MountOptions
from brevisfs.fs._reads import PROGRAMS, Reads
from brevisfs.fs._recompression import Recompression
from brevisfs.fs._tuning import spare_memory, tune
from brevisfs.store import (
    PRIVATE_FOLDER,
    Session,
    Store,
    begin_session,
    kept_unmounted,
    sync_filesystem,
    take_lock,
)

log = logging.getLogger("brevisfs.fs")

# New objects until the garbage collector looks at them. A listing makes several of each file, and keeps them.
_NEW_OBJECTS = 20_000
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def mount_foreground(store: Path, mountpoint: Path, options: MountOptions | None = None) -> None:
    """Mounts and serves until the mount is ended by umount or a signal. Main thread only.

    Raises StoreNotFound, StoreBusy, NoFuse, MountpointUnusable, MountFailed, BadOption.
    """
    options = options or MountOptions()
    log_to(options.log, background=False)
    serve(store, mountpoint, options, lambda: None)


def serve(store: Path, mountpoint: Path, options: MountOptions, answering: Callable[[], None]) -> None:
    """As mount_foreground, with a call of `answering` once the mount answers, and logging set up before."""
    with ExitStack() as held:
        backing = held.enter_context(Store(store))
        check_fuse()
        real = check_mountpoint(mountpoint, backing.path)
        try:
            # Two daemons for one file would each know nothing of what the other does to it.
            held.enter_context(kept_unmounted(backing.path.parent))
            lock = take_lock(backing.root, backing.path)
            if lock is not None:
                held.callback(os.close, lock)
            writable = None if lock is None or options.read_only else begin_session(backing, held)
        except OSError as error:
            raise MountFailed(
                f"{backing.path} cannot be mounted: its folder {os.fsdecode(PRIVATE_FOLDER)} cannot be used: "
                f"{error.strerror}"
            ) from None
        _raise_descriptor_limit()
        spare_memory()
        # The mode that a new file is to have comes with the request.
        os.umask(0)
        # What there is now stays to the end: no collection need look at it again.
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        trio.run(_serve, backing, writable, real, options, answering)


async def _serve(
    store: Store,
    writable: Session | None,
    mountpoint: Path,
    options: MountOptions,
    answering: Callable[[], None],
) -> None:
    reads = Reads(options.cache_size, options.threads, partial(Reader, programs=PROGRAMS))
    operations = Operations(store, reads, writable)
    try:
        with _mounted(operations, mountpoint):
            async with trio.open_nursery() as nursery:
                await nursery.start(_end_on_signal, operations)
                if writable is not None:
                    operations.watcher = recompression = Recompression(operations, options.recompression)
                    nursery.start_soon(recompression.run)
                async with trio.open_nursery() as session:
                    session.start_soon(pyfuse3.main)
                    failure = await _first_answer(mountpoint)
                    if failure is None:
                        answering()
                        notify("READY=1")
                notify("STOPPING=1")
                nursery.cancel_scope.cancel()
    finally:
        if writable is not None:
            sync_filesystem(writable.changes.private.temporaries)
    if failure is not None:
        raise MountFailed(f"{mountpoint} is mounted but does not answer: {failure.strerror}")


async def _first_answer(mountpoint: Path) -> OSError | None:
    """Waits until the mount answers and tunes it; what came instead if it never will."""
    try:
        status = await trio.to_thread.run_sync(os.stat, mountpoint)
    except OSError as error:
        pyfuse3.terminate()
        return error
    tune(status.st_dev)
    return None


async def _end_on_signal(
    operations: Operations, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(*_ENDING) as signals:
        task_status.started()
        async for _ in signals:
            operations.ending = True
            pyfuse3.terminate()


@contextmanager
def _mounted(operations: Operations, mountpoint: Path) -> Iterator[None]:
    options = {
        "default_permissions",
        "fsname=brevisfs",
        "subtype=brevisfs",
    }
    if operations.writable is None:
        options.add("ro")
    if may_allow_others():
        options.add("allow_other")
    else:
        print(
            "brevisfs: the mount is for this user alone; for others too, "
            "add user_allow_other to /etc/fuse.conf or mount as root",
            file=sys.stderr,
        )
    front = operations.reads.front
    front.serve()
    with _stderr_as_text() as said:
        try:
            pyfuse3.init(operations, str(mountpoint), options)
        except RuntimeError:
            front.end()
            raise MountFailed(
                f"{mountpoint} cannot be mounted: {said() or 'the kernel refused it'}"
            ) from None
    if not front.is_attached:
        log.warning("reads go through Python, which is slow: calls of this libfuse cannot be intercepted")
    try:
        yield
    finally:
        front.end()
        pyfuse3.close()


@contextmanager
def _stderr_as_text() -> Iterator[Callable[[], str]]:
    """Catches what a C library says on stderr, so that it can be part of an error."""
    with tempfile.TemporaryFile() as text:
        stderr = os.dup(2)
        os.dup2(text.fileno(), 2)
        try:
            yield lambda: "; ".join(os.pread(text.fileno(), 1000, 0).decode(errors="replace").splitlines())
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _raise_descriptor_limit() -> None:
    # Every file that is open in the mount is open in the store too.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
