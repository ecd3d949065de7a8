"""For the scripts beside this: a store mounted for the length of a block, by the command itself."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("brevisfs"))


@contextmanager
def mounted(store: Path, mountpoint: Path) -> Iterator[Path]:
    """Mounts, and unmounts whatever happens; raises CalledProcessError where one of the two fails.

    The log is a file beside the mountpoint.
    """
    log = mountpoint.with_name(f"{mountpoint.name}.log")
    subprocess.run([COMMAND, "mount", str(store), str(mountpoint), "--log", str(log)], check=True)
    try:
        yield mountpoint
        subprocess.run([COMMAND, "umount", str(mountpoint)], check=True)
    except BaseException:
        # What failed may still hold files open, and is what there is to report.
        subprocess.run([COMMAND, "umount", "--lazy", str(mountpoint)], check=False)
        raise
