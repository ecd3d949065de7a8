"""Having a store to oneself, to change it."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from brevisfs.store._catalog import Catalog
from brevisfs.store._changes import Changes
from brevisfs.store._lock import kept_unmounted, take_lock
from brevisfs.store._private import Private, Temporary
from brevisfs.store._recover import begin, unpack_links
from brevisfs.store._store import Step, Store

_CATALOG = "catalog.sqlite"


@dataclass(frozen=True, slots=True)
class Session:
    """What it takes to change a store that this process holds the lock of."""

    changes: Changes
    catalog: Catalog

    @contextmanager
    def unnoticed(self, folder: int) -> Iterator[None]:
        """What happens in the block to names in a folder does not show in the folder's ctime."""
        before = os.stat(b".", dir_fd=folder)
        yield
        self.catalog.note_ctime(os.stat(b".", dir_fd=folder), self.catalog.shown_ctime(before))

    def unpack_links(
        self, places: Sequence[tuple[Sequence[Step], bytes]], archive: os.stat_result, plain: Temporary
    ) -> None:
        """As `unpack_links`, unnoticed; a place is the trail of a folder, and a name in it."""
        store = self.changes.store
        with ExitStack() as held:
            for trail in {tuple(trail) for trail, _ in places}:
                held.enter_context(self.unnoticed(held.enter_context(store.folder(trail))))
            names = [([step.name for step in trail], name) for trail, name in places]
            unpack_links(self.changes, names, archive, plain)


def begin_session(store: Store, held: ExitStack) -> Session:
    """Brings a store in order that this process holds the lock of. `held` closes what is opened."""
    private = held.enter_context(Private(store.root))
    changes = Changes(store, private)
    begin(changes)
    return Session(changes, held.enter_context(Catalog(private.path / _CATALOG)))


@contextmanager
def exclusive(path: Path) -> Iterator[Session]:
    """A store to change, with its lock, for the time of the block.

    Raises StoreNotFound, StoreBusy if it is mounted, OSError EROFS if it cannot be written.
    """
    with ExitStack() as held:
        store = held.enter_context(Store(path))
        held.enter_context(kept_unmounted(store.path.parent))
        lock = take_lock(store.root, store.path)
        if lock is None:
            raise OSError(errno.EROFS, "the store cannot be written", str(store.path))
        held.callback(os.close, lock)
        yield begin_session(store, held)
