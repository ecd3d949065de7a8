"""The backing folder: what stands for a name, safe access to it, and changes that lose nothing."""

from brevisfs.store._catalog import Catalog
from brevisfs.store._changes import Changes, NeedsRaw, SourceMoved, check_name, sync_folder
from brevisfs.store._errors import StoreBusy, StoreNotFound
from brevisfs.store._lock import kept_unmounted, take_lock
from brevisfs.store._looks import Identity
from brevisfs.store._metadata import copy_metadata
from brevisfs.store._names import (
    ARCHIVE_SUFFIX,
    LONGEST_NAME,
    PENDING_SUFFIX,
    PRIVATE_FOLDER,
    is_reserved,
    shown_as,
)
from brevisfs.store._private import Private, Temporary
from brevisfs.store._recover import Place, begin, equal_losers, links, settle, unpack_links, walk
from brevisfs.store._session import Session, begin_session, exclusive
from brevisfs.store._store import Entry, Key, Kind, Step, Store
from brevisfs.store._syscalls import sync_filesystem
from brevisfs.store._whole import read_whole, write_whole

__all__ = [
    "ARCHIVE_SUFFIX",
    "LONGEST_NAME",
    "PENDING_SUFFIX",
    "PRIVATE_FOLDER",
    "Catalog",
    "Changes",
    "Entry",
    "Identity",
    "Key",
    "Kind",
    "NeedsRaw",
    "Place",
    "Private",
    "Session",
    "SourceMoved",
    "Step",
    "Store",
    "StoreBusy",
    "StoreNotFound",
    "Temporary",
    "begin",
    "begin_session",
    "check_name",
    "copy_metadata",
    "equal_losers",
    "exclusive",
    "is_reserved",
    "kept_unmounted",
    "links",
    "read_whole",
    "settle",
    "shown_as",
    "sync_filesystem",
    "sync_folder",
    "take_lock",
    "unpack_links",
    "walk",
    "write_whole",
]
