"""What the store's files cannot tell about themselves: an index that may be lost without losing data.

Rows belong to states of backing files, so a row of a file that has changed since says nothing.
"""

import logging
import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from brevisfs.store._looks import Identity

log = logging.getLogger("brevisfs.store")

_TABLES = """
CREATE TABLE IF NOT EXISTS published (
    device INTEGER, inode INTEGER, own_ctime INTEGER, shown_ctime INTEGER, PRIMARY KEY (device, inode));
CREATE TABLE IF NOT EXISTS judged (
    device INTEGER, inode INTEGER, size INTEGER, mtime INTEGER, reason TEXT, PRIMARY KEY (device, inode));
"""


class Catalog:
    """The ctime to show of archives and their folders, in ns, and raw files that are not worth another try.

    Look-ups are in memory, from any thread; what is noted goes to the file at once, and blocks. The lock is
    held while the tables change.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._open(path)
        except sqlite3.Error as error:
            log.warning("%s is begun anew: %s", path, error)
            with suppress(OSError):
                os.unlink(path)
            try:
                self._open(path)
            except sqlite3.Error:  # a full disk: what is noted holds until the mount ends
                self._open(":memory:")

    def _open(self, path: Path | str) -> None:
        self._file = sqlite3.connect(path, check_same_thread=False)
        # Without waiting for the disk: what a power cut takes is no loss.
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.executescript(_TABLES)
        columns = "device, inode, own_ctime, shown_ctime"
        self._ctimes = {
            (device, inode): (own, shown)
            for device, inode, own, shown in self._file.execute(f"SELECT {columns} FROM published")
        }
        self._judged = {
            (device, inode): (size, mtime, reason)
            for device, inode, size, mtime, reason in self._file.execute("SELECT * FROM judged")
        }

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shown_ctime(self, status: os.stat_result) -> int:
        """The ctime to show of a backing file, in ns."""
        own, shown = self._ctimes.get((status.st_dev, status.st_ino), (None, 0))
        return shown if own == status.st_ctime_ns else status.st_ctime_ns

    def note_ctime(self, status: os.stat_result, ctime_ns: int) -> None:
        """From now on `ctime_ns` is shown for this archive or folder, as long as its own does not change."""
        row = status.st_dev, status.st_ino, status.st_ctime_ns, ctime_ns
        with self._lock:
            self._ctimes[row[:2]] = row[2:]
            self._write("INSERT OR REPLACE INTO published VALUES (?, ?, ?, ?)", row)

    def judgement(self, file: Identity) -> str | None:
        """Why a raw file in this state is not to be packed; None if nothing is known against it."""
        size, mtime, reason = self._judged.get((file.device, file.inode), (None, None, None))
        return reason if (size, mtime) == (file.size, file.mtime_ns) else None

    def note_judgement(self, file: Identity, reason: str) -> None:
        """Remembers why a raw file in this state is not to be packed."""
        row = file.device, file.inode, file.size, file.mtime_ns, reason
        with self._lock:
            self._judged[row[:2]] = row[2:]
            self._write("INSERT OR REPLACE INTO judged VALUES (?, ?, ?, ?, ?)", row)

    def known(self) -> set[tuple[int, int]]:
        """The files that something is known of, as (device, inode). Blocks."""
        with self._lock:
            return {*self._ctimes, *self._judged}

    def forget(self, files: set[tuple[int, int]]) -> None:
        """Drops what is known of files that are gone."""
        for key in files:
            with self._lock:
                if self._ctimes.pop(key, None) is not None:
                    self._write("DELETE FROM published WHERE device = ? AND inode = ?", key)
                if self._judged.pop(key, None) is not None:
                    self._write("DELETE FROM judged WHERE device = ? AND inode = ?", key)

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        try:
            with self._file:
                self._file.execute(statement, row)
        except (sqlite3.Error, OverflowError) as error:  # it is known until the mount ends
            log.warning("the catalog could not be written: %s", error)
