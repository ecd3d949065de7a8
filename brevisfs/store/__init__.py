"""The backing folder: what stands for a name, and safe access to it."""

from brevisfs.store._errors import StoreBusy, StoreNotFound
from brevisfs.store._lock import take_lock
from brevisfs.store._names import ARCHIVE_SUFFIX, PENDING_SUFFIX, PRIVATE_FOLDER, is_reserved, shown_as
from brevisfs.store._store import Entry, Identity, Kind, Step, Store

__all__ = [
    "ARCHIVE_SUFFIX",
    "PENDING_SUFFIX",
    "PRIVATE_FOLDER",
    "Entry",
    "Identity",
    "Kind",
    "Step",
    "Store",
    "StoreBusy",
    "StoreNotFound",
    "is_reserved",
    "shown_as",
    "take_lock",
]
