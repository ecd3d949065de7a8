"""Ending a mount."""

import os
import select
import subprocess
from pathlib import Path

from brevisfs.fs._checks import UNMOUNTER
from brevisfs.fs._errors import MountBusy, MountFailed, MountpointUnusable, NoFuse
from brevisfs.fs._mounts import FILESYSTEM, filesystem_at, holders
from brevisfs.fs._xattrs import PREFIX

# The daemon waits until all that was written is on disk.
_SECONDS = 600
_NAMED = 5


def umount(mountpoint: Path, lazy: bool = False) -> None:
    """Ends the mount and returns when its daemon is gone, and with it the store's lock.

    `lazy`: the mount goes from sight at once and ends by itself when nobody uses it any more; does not wait.
    Raises MountpointUnusable if no mount of ours is there, MountBusy with the names of who uses it,
    MountFailed if the daemon does not end, NoFuse without fusermount3.
    """
    real = _real(mountpoint)
    mounted = filesystem_at(real)
    if mounted != FILESYSTEM:
        what = "nothing is mounted there" if mounted is None else f"what is mounted there is {mounted}"
        raise MountpointUnusable(f"{mountpoint} is no BrevisFS mount: {what}")
    daemon = None if lazy else _daemon(real)
    try:
        _unmount(real, lazy)
        if daemon is not None:
            _wait_for_end(daemon, mountpoint)
    finally:
        if daemon is not None:
            os.close(daemon)


def _real(mountpoint: Path) -> Path:
    """The path under which the kernel has the mount. Does not ask the mount itself, which may be stuck."""
    plain = mountpoint.absolute()
    if plain.name != "..":
        real = Path(os.path.realpath(plain.parent), plain.name)
        if filesystem_at(real) == FILESYSTEM:
            return real
    return Path(os.path.realpath(plain))


def _daemon(mountpoint: Path) -> int | None:
    """A descriptor of the process that serves the mount; None if it is dead or out of reach."""
    try:
        number = int(os.getxattr(mountpoint, PREFIX + b"pid"))
        daemon = os.pidfd_open(number)
        command = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return None
    if b"brevisfs" in command:
        return daemon
    # A container's number is another process here.
    os.close(daemon)
    return None


def _unmount(mountpoint: Path, lazy: bool) -> None:
    command = [UNMOUNTER, "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoFuse(f"{UNMOUNTER} is not installed; install the package fuse3") from None
    if done.returncode == 0:
        return
    users = holders(mountpoint)
    if users or "busy" in done.stderr:
        named = ", ".join(users[:_NAMED]) or "a process that this user may not see"
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        raise MountBusy(f"{mountpoint} is in use by {named}{more}; end that first, or unmount with --lazy")
    raise MountFailed(f"{mountpoint} cannot be unmounted: {done.stderr.strip()}")


def _wait_for_end(daemon: int, mountpoint: Path) -> None:
    ended = select.poll()
    ended.register(daemon, select.POLLIN)
    if not ended.poll(_SECONDS * 1000):
        raise MountFailed(f"{mountpoint} is unmounted, but its daemon did not end within {_SECONDS} seconds")
