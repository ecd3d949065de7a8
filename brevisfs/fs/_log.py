"""Where the log goes."""

import logging
import logging.handlers
import os
import sys
from pathlib import Path

from brevisfs.fs._errors import BadOption

_SYSLOG = Path("/dev/log")


def log_to(file: Path | None, *, background: bool) -> None:
    """Sends the process's log to `file`, or to syslog from the background and stderr from the foreground.

    Raises BadOption if the file cannot be written.
    """
    handler: logging.Handler
    if file is not None:
        try:
            handler = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise BadOption(f"{file} cannot be the log: {error.strerror}") from None
        form = "%(asctime)s %(levelname)s %(message)s"
    elif background and _SYSLOG.exists():
        handler = logging.handlers.SysLogHandler(str(_SYSLOG), logging.handlers.SysLogHandler.LOG_DAEMON)
        form = f"brevisfs[{os.getpid()}]: %(levelname)s %(message)s"
    else:
        handler = logging.StreamHandler(sys.stderr)
        form = "brevisfs: %(message)s"
        if background:
            print("brevisfs: there is no syslog here; name a log file with --log", file=sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
