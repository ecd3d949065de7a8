"""What a file has beside its bytes, as far as it can be given to another file."""

import errno
import os
import stat
from contextlib import suppress

# Given by the system's policy to every new file, not by whoever wrote it.
_POLICY = ("security.selinux", "security.ima", "security.evm", "security.apparmor")
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


def copy_metadata(source: int, target: int) -> None:
    """Gives an open file the mode, owner, extended attributes (access lists too) and times of another.

    What the target has and the source has not is taken away. Raises OSError if something cannot be given.
    """
    status = os.fstat(source)
    there = os.fstat(target)
    if (there.st_uid, there.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(target, status.st_uid, status.st_gid)
    wanted = _attributes(source)
    for name in _attributes(target).keys() - wanted.keys():
        os.removexattr(target, name)
    # Before the attributes, whose access list says more than the mode can.
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    for name, value in wanted.items():
        os.setxattr(target, name, value)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _attributes(file: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return found
        raise
    for name in names:
        if name not in _POLICY:
            with suppress(PermissionError):  # listed, but not for this process to read
                found[name] = os.getxattr(file, name)
    return found
