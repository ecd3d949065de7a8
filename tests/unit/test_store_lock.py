"""A store has one daemon."""

import os
from pathlib import Path

import pytest

from brevisfs.store import Store, StoreBusy, exclusive, kept_unmounted, take_lock


def test_the_second_is_told_who_has_the_store(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        lock = take_lock(store.root, store.path)
        assert lock is not None
        with pytest.raises(StoreBusy) as caught:
            take_lock(store.root, store.path)
        assert str(os.getpid()) in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        os.close(lock)
        again = take_lock(store.root, store.path)
        assert again is not None
        os.close(again)


def test_a_store_that_cannot_be_written_has_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with Store(tmp_path) as store:
        monkeypatch.setattr("brevisfs.store._lock.os.mkdir", refused)
        assert take_lock(store.root, store.path) is None
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Store(tmp_path) as store:
        monkeypatch.setattr("brevisfs.store._lock.os.mkdir", full)
        assert take_lock(store.root, store.path) is None
        monkeypatch.undo()
        monkeypatch.setattr("brevisfs.store._lock.os.pwrite", full)
        lock = take_lock(store.root, store.path)
        assert lock is not None
        with pytest.raises(StoreBusy, match="already mounted or being changed; end"):
            take_lock(store.root, store.path)
        os.close(lock)


def test_the_lock_is_not_taken_through_a_symlink(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "store"
    root.mkdir()
    (root / ".brevisfs").symlink_to(outside)
    with Store(root) as store, pytest.raises(NotADirectoryError):
        take_lock(store.root, store.path)
    assert not list(outside.iterdir())


def test_a_folder_of_a_store_is_no_other_store_meanwhile(tmp_path: Path) -> None:
    """In whichever order: one that was a store once has its lock kept by who serves a folder in it."""
    (tmp_path / "store/sub").mkdir(parents=True)
    with exclusive(tmp_path / "store"):
        with pytest.raises(StoreBusy, match="lies in the store"), exclusive(tmp_path / "store/sub"):
            pass
        with pytest.raises(StoreBusy), kept_unmounted(tmp_path / "store/sub"):
            pass
    with exclusive(tmp_path / "store/sub"), pytest.raises(StoreBusy), exclusive(tmp_path / "store"):
        pass
    with exclusive(tmp_path / "store"):
        pass
