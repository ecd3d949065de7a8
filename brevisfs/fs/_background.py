"""Starting a daemon that mounts, and hearing from it how that went.

A fresh process and never a fork: what a forked child inherits would keep a dead mount hanging.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from brevisfs.errors import BrevisError
from brevisfs.fs._errors import BadOption, MountFailed, MountpointUnusable, NoFuse
from brevisfs.fs._options import MountOptions
from brevisfs.store import StoreBusy, StoreNotFound

_ERRORS: dict[str, type[BrevisError]] = {
    error.__name__: error
    for error in (BadOption, MountFailed, MountpointUnusable, NoFuse, StoreBusy, StoreNotFound)
}


def mount_background(store: Path, mountpoint: Path, options: MountOptions | None = None) -> int:
    """Mounts in a daemon and returns its process id once the mount answers.

    Raises what mount_foreground raises before that. What else the daemon has to say by then goes to stderr.
    """
    options = options or MountOptions()
    ready, answer = os.pipe()
    with os.fdopen(ready, "rb") as pipe:
        try:
            daemon = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # nothing of the folder that the command was called in is code
                    "-m",
                    "brevisfs.fs.daemon",
                    os.path.abspath(store),
                    os.path.abspath(mountpoint),
                    _to_json(options),
                    str(answer),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(answer,),
                start_new_session=True,
            )
        finally:
            os.close(answer)
        said = pipe.read()
    if not said:
        raise MountFailed(f"{mountpoint}: the daemon ended ({daemon.wait()}) before the mount answered")
    failure = json.loads(said)
    if failure is not None:
        daemon.wait()
        raise _ERRORS.get(failure["error"], MountFailed)(failure["message"])
    # From here on it is nobody's child to wait for, of which Popen would warn otherwise.
    daemon.returncode = 0
    return daemon.pid


def _to_json(options: MountOptions) -> str:
    fields = asdict(options)
    return json.dumps({**fields, "log": options.log and os.path.abspath(options.log)})
