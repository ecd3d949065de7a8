"""The mount: a store's tree with its archives as the plain files they were made from."""

import brevisfs.fs._loading  # noqa: F401  # before what loads pyfuse3
from brevisfs.fs._background import mount_background
from brevisfs.fs._control import command, drain, status
from brevisfs.fs._errors import BadOption, MountBusy, MountFailed, MountpointUnusable, NoFuse
from brevisfs.fs._options import MountOptions, RecompressionOptions
from brevisfs.fs._serve import mount_foreground
from brevisfs.fs._umount import umount

__all__ = [
    "BadOption",
    "MountBusy",
    "MountFailed",
    "MountOptions",
    "MountpointUnusable",
    "NoFuse",
    "RecompressionOptions",
    "command",
    "drain",
    "mount_background",
    "mount_foreground",
    "status",
    "umount",
]
