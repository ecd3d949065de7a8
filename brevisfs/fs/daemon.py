"""The mount as a process of its own: `python -m brevisfs.fs.daemon STORE MOUNTPOINT OPTIONS ANSWER`.

OPTIONS is JSON, the fields of MountOptions; ANSWER the descriptor of a pipe. A JSON value comes out of the
pipe when the mount answers, `null`, or has failed, `{"error": class, "message": line}`; the starter may go
then.
"""

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from brevisfs.errors import BrevisError, ExitCode
from brevisfs.fs._errors import MountFailed
from brevisfs.fs._log import log_to
from brevisfs.fs._options import MountOptions, RecompressionOptions
from brevisfs.fs._serve import serve


def main(store: str, mountpoint: str, options: str, pipe: str) -> None:
    """Serves until the mount ends; exits with the error's code if it cannot be made."""
    answer = int(pipe)
    os.set_inheritable(answer, False)
    os.chdir("/")

    def tell(failure: dict[str, str] | None) -> None:
        with suppress(OSError):  # a starter that has gone needs no answer
            os.write(answer, json.dumps(failure).encode())

    def answering() -> None:
        tell(None)
        # Whoever reads the starter's stderr to its end, or the pipe, must not wait for the daemon.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (2, answer):
            os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)

    try:
        chosen = _from_json(options)
        log_to(chosen.log, background=True)
        serve(Path(store), Path(mountpoint), chosen, answering)
    except BrevisError as error:
        tell({"error": type(error).__name__, "message": str(error)})
        sys.exit(error.exit_code)
    except Exception as error:
        logging.getLogger("brevisfs.fs").exception("the daemon of %s ends", mountpoint)
        tell({"error": MountFailed.__name__, "message": f"{store} cannot be mounted: {error}"})
        sys.exit(ExitCode.FAILED)


def _from_json(text: str) -> MountOptions:
    fields = json.loads(text)
    recompression = RecompressionOptions(**fields.pop("recompression"))
    return MountOptions(
        **{**fields, "log": fields["log"] and Path(fields["log"]), "recompression": recompression}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
