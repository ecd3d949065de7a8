"""A disk made slow: the control group of version 1 or 2 that limits what processes read from a device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/blkio")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextmanager
def throttled(folder: Path, megabytes: int, processes: Sequence[int]) -> Iterator[None]:
    """Limits this process and `processes` to MB (10^6 bytes) a second of the disk that `folder` is on.

    Raises OSError where that is not possible: without root, or without the controller.
    """
    disk = _disk(folder)
    if _VERSION_1.is_dir():
        root, file, limit = _VERSION_1, "blkio.throttle.read_bps_device", f"{disk} {megabytes * 1_000_000}"
    else:
        root, file, limit = _VERSION_2, "io.max", f"{disk} rbps={megabytes * 1_000_000}"
        (root / "cgroup.subtree_control").write_text("+io")
    group = root / f"brevisfs-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(limit)
        for process in (os.getpid(), *processes):
            (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for process in (os.getpid(), *processes):
            (root / "cgroup.procs").write_text(str(process))
        group.rmdir()


def _disk(folder: Path) -> str:
    """The whole disk's device number; limits are not for partitions."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path(f"/sys/dev/block/{number}").resolve()
    return (block.parent / "dev").read_text().strip() if (block / "partition").exists() else number
