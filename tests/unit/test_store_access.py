"""What a store shows, and that nothing leads out of it."""

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brevisfs._native import folder as native
from brevisfs.store import Entry, Identity, Kind, Step, Store, StoreNotFound
from tests.stores import add_archive, flip, noise


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store(root) as store:
        yield store


def find(store: Store, name: bytes) -> Entry:
    with store.folder([]) as folder:
        return store.find(folder, name)


def shown(store: Store) -> dict[bytes, Entry]:
    with store.folder([]) as folder:
        return {entry.name: entry for entry in store.entries(folder)}


def reopens(store: Store, trail: Sequence[Step], entry: Entry) -> bool:
    """Whether a file that was found is opened from memory, and then it is that file and not another."""
    reopened = store.reopen(trail, entry.name, entry.kind, entry.identity)
    if reopened is None:
        return False
    file, name = reopened
    try:
        assert name == entry.file
        assert os.path.samestat(os.fstat(file), entry.status)
        assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert not os.get_inheritable(file)
    finally:
        os.close(file)
    return True


@pytest.fixture
def known(store: Store, root: Path) -> tuple[list[Step], Entry]:
    """An archive in a folder, which can be opened from memory because it was found."""
    (root / "d").mkdir()
    add_archive(root / "d/x.brv", [noise(50)])
    trail = [step(root / "d")]
    with store.folder(trail) as folder:
        entry = store.find(folder, b"x")
        if not native.is_at_once(folder):
            pytest.skip("on a filesystem that is not asked to open from memory")
    assert reopens(store, trail, entry)
    return trail, entry


def step(path: Path) -> Step:
    status = path.stat()
    return Step(os.fsencode(path.name), status.st_dev, status.st_ino)


def test_an_archive_has_the_name_and_size_of_its_original(store: Store, root: Path) -> None:
    add_archive(root / "m.safetensors.brv", [noise(1000), noise(70_000)])
    entry = find(store, b"m.safetensors")
    assert (entry.kind, entry.file, entry.size) == (Kind.ARCHIVE, b"m.safetensors.brv", 71_000)
    assert entry.status.st_size == (root / "m.safetensors.brv").stat().st_size
    with pytest.raises(FileNotFoundError):
        find(store, b"m.safetensors.brv")
    assert shown(store) == {b"m.safetensors": entry}


def test_what_find_and_entries_show_is_the_same(store: Store, root: Path) -> None:
    archive = add_archive(root / "a.brv", [noise(10)])
    for file in ("a", "b.brv", "c", "c.brv", "c.brv+", ".brevisfs.brv", "x.brv.brv", ".brv"):
        (root / file).write_bytes((root / "a.brv").read_bytes())
    (root / "text.brv").write_text("no archive")
    (root / "folder.brv").mkdir()
    (root / "link.brv").symlink_to("a.brv")
    (root / ".brevisfs").mkdir()
    entries = shown(store)
    assert {name: (entry.file, entry.kind) for name, entry in entries.items()} == {
        b"a": (b"a", Kind.RAW),
        b"b": (b"b.brv", Kind.ARCHIVE),
        b"c": (b"c.brv+", Kind.ARCHIVE),
        b"x.brv": (b"x.brv.brv", Kind.ARCHIVE),
        b".brv": (b".brv", Kind.RAW),
        b"text.brv": (b"text.brv", Kind.RAW),
        b"folder.brv": (b"folder.brv", Kind.RAW),
        b"link.brv": (b"link.brv", Kind.RAW),
    }
    assert entries[b"b"].size == len(archive)
    for name, entry in entries.items():
        assert find(store, name) == entry
    hidden = (b".brevisfs", b"b.brv", b"c.brv", b"c.brv+", b"x", b"nothing")
    for name in hidden:
        with pytest.raises(FileNotFoundError):
            find(store, name)
    with store.folder([]) as folder:
        assert store.find_all(folder, [*hidden, *entries]) == [*[None] * len(hidden), *entries.values()]


def test_a_name_too_long_for_a_suffix_is_found(store: Store, root: Path) -> None:
    (root / ("n" * 255)).write_text("x")
    assert find(store, b"n" * 255).size == 1


@pytest.mark.parametrize(("damaged", "size"), [([0], 50), ([-1], 50), ([40], 50), ([40, -100], 0)])
def test_the_length_comes_from_head_or_tail(store: Store, root: Path, damaged: list[int], size: int) -> None:
    path = root / "x.brv"
    add_archive(path, [noise(50)])
    for offset in damaged:
        flip(path, offset)
    assert (find(store, b"x").kind, find(store, b"x").size) == (Kind.ARCHIVE, size)


def test_without_both_magics_it_is_a_plain_file(store: Store, root: Path) -> None:
    path = root / "x.brv"
    add_archive(path, [noise(50)])
    flip(path, 0)
    flip(path, -1)
    assert find(store, b"x.brv").size == path.stat().st_size


def test_a_head_is_read_once(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_archive(root / "x.brv", [noise(50)])
    shown(store)

    real = native.look_at

    def look_outside(
        folder: int, names: Sequence[bytes], states: Sequence[bytes], inside: Sequence[bool]
    ) -> list[tuple[int, bool, bool]]:
        assert not any(inside), "read again"
        return real(folder, names, states, inside)

    monkeypatch.setattr(native, "look_at", look_outside)
    assert find(store, b"x").size == 50
    os.utime(root / "x.brv", ns=(1, 1))
    with pytest.raises(AssertionError):
        find(store, b"x")


def test_no_symlink_is_followed(store: Store, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "way").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    assert stat.S_ISLNK(find(store, b"way").status.st_mode)
    with pytest.raises(OSError) as caught, store.folder([step(root / "way")]):
        pass
    assert caught.value.errno == errno.ESTALE
    entry = find(store, b"file")
    with store.folder([]) as folder, pytest.raises(OSError) as caught:
        store.open(folder, entry)
    assert caught.value.errno == errno.ELOOP


def test_a_replaced_folder_is_stale(store: Store, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/b").mkdir()
    trail = [step(root / "a"), step(root / "a/b")]
    with store.folder(trail) as folder:
        assert os.path.samestat(os.fstat(folder), (root / "a/b").stat())
    (root / "a").rename(root / "old")
    (root / "a").mkdir()
    (root / "old/b").rename(root / "a/b")
    with pytest.raises(OSError) as caught, store.folder(trail):
        pass
    assert caught.value.errno == errno.ESTALE


def test_a_replaced_file_is_stale(store: Store, root: Path) -> None:
    (root / "x").write_text("old")
    entry = find(store, b"x")
    (root / "new").write_text("new")
    (root / "new").rename(root / "x")
    with store.folder([]) as folder, pytest.raises(OSError) as caught:
        store.open(folder, entry)
    assert caught.value.errno == errno.ESTALE


def test_what_was_never_looked_for_is_not_in_memory(store: Store, root: Path) -> None:
    (root / "x").write_text("x")
    status = (root / "x").stat()
    # Nobody has asked for the names yet that would win.
    assert store.reopen([], b"x", Kind.RAW, Identity.of(status)) is None
    assert store.find_at_once([], b"x") is None
    assert store.find_at_once([], b"missing") is None
    entry = find(store, b"x")
    assert reopens(store, [], entry) == store.is_at_once
    assert (store.find_at_once([], b"x") is not None) == store.is_at_once


def test_what_is_found_from_memory_is_what_is_there(store: Store, root: Path) -> None:
    add_archive(root / "a.brv", [noise(10)])
    add_archive(root / "damaged.brv", [noise(5)])
    flip(root / "damaged.brv", 40)
    for file in ("b.brv", "c.brv", "c.brv+", ".brevisfs.brv", "x.brv.brv", ".brv"):
        (root / file).write_bytes((root / "a.brv").read_bytes())
    (root / "b").write_text("raw")
    (root / "text.brv").write_text("no archive")
    (root / "folder.brv").mkdir()
    (root / "link").symlink_to("b")
    os.mkfifo(root / "pipe")
    names = [name.encode() for name in ("a", "b", "c", "x.brv", "damaged", "folder.brv", "link", "pipe")]
    names += [b"text.brv", b"c.brv", b"text", b"missing", b".brevisfs"]
    found: dict[bytes, Entry | None] = {}
    for name in names:
        try:
            found[name] = find(store, name)._replace(bare=False)
        except FileNotFoundError:
            found[name] = None
    for name in names if store.is_at_once else []:
        try:
            entry = store.find_at_once([], name)
        except FileNotFoundError:
            assert found[name] is None
        else:
            # What is no archive, or not shown under the name of its file, a thread looks at.
            assert entry == found[name] or (entry is None and name in (b"text.brv", b"c.brv", b".brevisfs"))


def test_a_long_way_down_is_not_asked_from_memory(store: Store, root: Path) -> None:
    trail: list[Step] = []
    at = root
    for depth in range(18):
        (at / "x").write_text("x")
        with store.folder(trail) as folder:
            entry = store.find(folder, b"x")
        near = store.is_at_once and depth <= 16
        assert reopens(store, trail, entry) == near
        assert (store.find_at_once(trail, b"x") is not None) == near
        at = at / "d"
        at.mkdir()
        trail.append(step(at))


@pytest.mark.parametrize("file", ["d/x.brv+", "d/x"])
def test_another_file_may_have_won(
    store: Store, root: Path, known: tuple[list[Step], Entry], file: str
) -> None:
    (root / file).write_text("another")
    assert not reopens(store, *known)
    (root / file).unlink()
    assert reopens(store, *known)


@pytest.mark.parametrize("file", ["d/x.brv+", "d/x"])
def test_even_if_it_is_the_same_file(
    store: Store, root: Path, known: tuple[list[Step], Entry], file: str
) -> None:
    """Under the name of a plain file an archive is not decoded."""
    trail, entry = known
    (root / file).hardlink_to(root / "d/x.brv")
    with store.folder(trail) as folder:
        now = store.find(folder, b"x")
    assert not reopens(store, trail, entry)
    as_before = store.reopen(trail, b"x", entry.kind, now.identity)
    assert (as_before is None) == (file == "d/x")
    if as_before is not None:
        os.close(as_before[0])
    assert reopens(store, trail, now)


def _replaced(path: Path) -> None:
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").rename(path)


def _written(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def _touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def _linked(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.symlink_to("away")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_replaced, _written, _touched, _linked, _pipe, _folder, Path.unlink])
def test_what_has_changed_is_not_opened_from_memory(
    store: Store, root: Path, known: tuple[list[Step], Entry], change: Callable[[Path], None]
) -> None:
    before = os.listdir("/proc/self/fd")
    change(root / "d/x.brv")
    assert not reopens(store, *known)
    found = _find_known(store, known)
    assert found is None or found.identity != known[1].identity
    assert os.listdir("/proc/self/fd") == before


def _find_known(store: Store, known: tuple[list[Step], Entry]) -> Entry | None:
    try:
        return store.find_at_once(known[0], known[1].name)
    except FileNotFoundError:
        return None


def test_nor_what_another_folder_has(store: Store, root: Path, known: tuple[list[Step], Entry]) -> None:
    before = os.listdir("/proc/self/fd")
    (root / "d").rename(root / "e")
    assert not reopens(store, *known)
    (root / "d").symlink_to("e")
    assert not reopens(store, *known)
    assert store.find_at_once(known[0], b"x") is None
    assert store.find_at_once(known[0], b"missing") is None
    (root / "d").unlink()
    (root / "d").mkdir()
    (root / "d/x.brv").hardlink_to(root / "e/x.brv")
    with store.folder([step(root / "d")]) as folder:
        entry = store.find(folder, b"x")
    assert not reopens(store, known[0], entry)
    assert store.find_at_once(known[0], b"x") is None
    assert reopens(store, [step(root / "d")], entry)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_a_kernel_that_cannot_open_from_memory(
    store: Store, known: tuple[list[Step], Entry], number: int
) -> None:
    """That has no openat2, or must not use it, or does not know the flag."""

    def refused() -> bool:
        _refuse_openat2(number)
        return reopens(store, *known)

    def refused_to_find() -> bool:
        _refuse_openat2(number)
        return store.find_at_once(known[0], b"x") is None and store.find_at_once([], b"missing") is None

    for use, works in ((refused, False), (refused_to_find, True)):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(use).result() == works
    assert reopens(store, *known)


def _refuse_openat2(number: int) -> None:
    """For the calling thread, until it ends: a seccomp filter."""
    openat2, load, jump_if_equal, give, allow, refuse = 437, 0x20, 0x15, 6, 0x7FFF0000, 0x50000
    rules = [(load, 0, 0, 0), (jump_if_equal, 0, 1, openat2)]
    rules += [(give, 0, 0, refuse | number), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HP", len(rules), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    if prctl(set_no_new_privileges, 1, 0, 0, 0) or prctl(set_seccomp, by_filter, program, 0, 0):
        pytest.skip(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def test_a_pipe_does_not_block(store: Store, root: Path) -> None:
    os.mkfifo(root / "pipe.brv")
    assert stat.S_ISFIFO(find(store, b"pipe.brv").status.st_mode)


def test_names_need_not_be_text(store: Store, root: Path) -> None:
    name = b"m\xff\xfe\n.safetensors"
    add_archive(root / os.fsdecode(name + b".brv"), [noise(9)])
    assert find(store, name).size == 9
    assert set(shown(store)) == {name}


def test_no_descriptor_is_left(store: Store, root: Path) -> None:
    add_archive(root / "x.brv", [noise(50)])
    before = os.listdir("/proc/self/fd")
    shown(store)
    find(store, b"x")
    with pytest.raises(OSError), store.folder([Step(b"x.brv", 0, 0)]):
        pass
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("what", ["nothing", "file"])
def test_no_store(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotFound) as caught:
        Store(tmp_path / what)
    assert str(tmp_path / what) in str(caught.value)


def test_files_are_found_as_lstat_shows_them(root: Path) -> None:
    add_archive(root / "x.brv", [noise(50)])
    (root / "folder").mkdir()
    (root / "link").symlink_to("nowhere")
    os.mkfifo(root / "pipe", 0o640)
    os.utime(root / "x.brv", ns=(-1, 2**33 * 10**9 + 123_456_789))
    os.utime(root / "folder", ns=(0, 0))
    strange = os.fsdecode(b"\xff\n \x01")
    (root / strange).write_text("x")
    folder = os.open(root, os.O_PATH)
    try:
        found = dict(native.files_in(folder).each())
        assert found.keys() == {os.fsencode(name) for name in os.listdir(root)}
        for name, state in found.items():
            shown, real = native.statuses([state])[0], os.lstat(root / os.fsdecode(name))
            for field in (field for field in dir(real) if field.startswith("st_")):
                assert getattr(shown, field) == getattr(real, field), (name, field)
        mounts = {native.mount_of(state) for state in found.values()}
        assert len(mounts) == 1
        some = native.files_named(folder, [b"pipe", b"nothing", b"n" * 256, b"", b"link"])
        assert dict(some.each()) == {name: found[name] for name in (b"pipe", b"link")}
        assert list(native.files_named(folder, []).each()) == []
    finally:
        os.close(folder)


def test_what_files_are_cannot_be_learned(root: Path) -> None:
    file = os.open(root, os.O_RDONLY)
    os.close(file)
    with pytest.raises(OSError) as caught:
        native.files_in(file)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError) as caught:
        native.files_named(file, [b"x", b"y"])
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, b"x")


def test_a_file_that_may_not_be_read_is_shown_as_it_is(store: Store, root: Path) -> None:
    add_archive(root / "x.brv", [noise(50)])
    (root / "x.brv").chmod(0)
    os.setxattr(root / "x.brv", "user.tag", b"")
    if os.geteuid():
        assert (find(store, b"x.brv").kind, find(store, b"x.brv").bare) == (Kind.RAW, False)
    (root / "x.brv").chmod(0o400)
    assert (find(store, b"x").kind, find(store, b"x").bare) == (Kind.ARCHIVE, False)


def test_looking_at_a_file_does_not_show(store: Store, root: Path) -> None:
    add_archive(root / "x.brv", [noise(50)])
    os.utime(root / "x.brv", ns=(0, 10**18))
    assert find(store, b"x").size == 50
    assert (root / "x.brv").stat().st_atime_ns == 0


def test_what_takes_the_place_of_a_file_meanwhile_is_looked_at_as_what_it_is(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two, by what asks for states and what looks: nothing wrong is remembered or waited for."""
    add_archive(root / "x.brv", [noise(50)])
    real = native.look_at

    def make_pipe() -> None:
        (root / "x.brv").unlink()
        os.mkfifo(root / "x.brv")

    def make_link() -> None:
        (root / "x.brv").unlink()
        (root / "x.brv").symlink_to("other.brv")

    def make_other() -> None:
        (root / "x.brv").unlink()
        add_archive(root / "x.brv", [noise(60)])

    add_archive(root / "other.brv", [noise(70)])
    changes = [make_pipe, make_link, make_other, (root / "x.brv").unlink]
    for change, length in zip(changes, (None, None, 60, None), strict=True):
        (root / "x.brv").unlink()
        add_archive(root / "x.brv", [noise(50)])

        def change_and_look(
            folder: int,
            names: Sequence[bytes],
            states: Sequence[bytes],
            inside: Sequence[bool],
            change: Callable[[], None] = change,
        ) -> list[tuple[int, bool, bool]]:
            if names == [b"x.brv"]:
                change()
            return real(folder, names, states, inside)

        monkeypatch.setattr(native, "look_at", change_and_look)
        if length is None:
            assert find(store, b"x.brv").kind is Kind.RAW
        else:
            assert find(store, b"x").size == length
        monkeypatch.setattr(native, "look_at", real)
        if change is make_other:
            assert find(store, b"x").size == 60
