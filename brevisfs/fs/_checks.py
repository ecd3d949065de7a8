"""What must be so before a store is mounted."""

import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

from brevisfs.fs._errors import MountpointUnusable, NoFuse
from brevisfs.fs._mounts import FILESYSTEM, filesystem_at

log = logging.getLogger("brevisfs.fs")

FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONFIGURATION = Path("/etc/fuse.conf")
UNMOUNTER = "fusermount3"


def check_fuse() -> None:
    """Raises NoFuse if a mount cannot be made on this machine."""
    try:
        os.close(os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NoFuse(
            f"{FUSE_DEVICE} cannot be opened ({error.strerror}); load the kernel's fuse module, "
            "or give the container that device"
        ) from None
    if shutil.which(UNMOUNTER) is None:
        raise NoFuse(f"{UNMOUNTER} is not installed; install the package fuse3")


def check_mountpoint(mountpoint: Path, store: Path) -> Path:
    """The mountpoint's real path. Raises MountpointUnusable if the store cannot be mounted there.

    A mount of ours whose daemon has died is taken away first.
    """
    real = Path(os.path.realpath(mountpoint))
    mounted = filesystem_at(real)
    if mounted == FILESYSTEM and _is_dead(real):
        log.warning("%s: taking away a mount whose daemon has died", real)
        subprocess.run([UNMOUNTER, "-u", "-z", "--", real], check=False, stderr=subprocess.DEVNULL)
        mounted = filesystem_at(real)
    if mounted is not None:
        raise MountpointUnusable(f"{mountpoint}: something is mounted there already ({mounted})")
    try:
        names = os.listdir(real)
    except FileNotFoundError:
        raise MountpointUnusable(f"{mountpoint}: there is no such folder; make it first") from None
    except OSError as error:
        raise MountpointUnusable(f"{mountpoint} cannot be a mountpoint: {error.strerror}") from None
    if _lies_in(real, store) or _lies_in(store, real):
        raise MountpointUnusable(
            f"the store {store} and the mountpoint {mountpoint} lie in each other; mount elsewhere"
        )
    if names:
        raise MountpointUnusable(f"{mountpoint} is not empty; mount on an empty folder")
    return real


def may_allow_others() -> bool:
    """Whether other users can be let into a mount of this user's."""
    if os.geteuid() == 0:
        return True
    try:
        lines = FUSE_CONFIGURATION.read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def _is_dead(mountpoint: Path) -> bool:
    try:
        os.statvfs(mountpoint)  # the kernel has no answer of its own to this
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _lies_in(inner: Path, outer: Path) -> bool:
    """By what the paths lead to, so that bind mounts of one folder are the same folder."""
    folder = os.stat(outer)
    return any(os.path.samestat(os.stat(path), folder) for path in (inner, *inner.parents))
