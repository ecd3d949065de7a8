"""Names alone decide which file of the store a name of the mount means."""

import itertools
from collections.abc import Iterable

import pytest

from brevisfs.store import is_reserved, shown_as
from brevisfs.store._names import candidates, ranked


@pytest.mark.parametrize(
    ("file", "archive", "name"),
    [
        (b"x", False, b"x"),
        (b"x", True, b"x"),
        (b"x.brv", True, b"x"),
        (b"x.brv+", True, b"x"),
        (b"x.brv", False, b"x.brv"),
        (b"x.brv+", False, b"x.brv+"),
        (b"x.brv.brv", True, b"x.brv"),
        (b".brv", True, b".brv"),
        (b".brv+", True, b".brv+"),
        (b"\xff\xfe.brv", True, b"\xff\xfe"),
        (b"brv", True, b"brv"),
    ],
)
def test_shown_as(file: bytes, archive: bool, name: bytes) -> None:
    assert shown_as(file, archive) == name


def test_only_suffixed_names_are_reserved() -> None:
    assert [
        name for name in (b"x", b".brv", b".brv+", b"x.brv", b"x.brv+", b"x.brv~") if is_reserved(name)
    ] == [
        b"x.brv",
        b"x.brv+",
    ]


def shown(files: Iterable[tuple[bytes, bool]]) -> dict[bytes, list[bytes]]:
    """Of files and whether they are archives."""
    return ranked((shown_as(file, is_archive), file) for file, is_archive in files)


def test_the_pending_archive_beats_the_raw_file_beats_the_archive() -> None:
    files = [(b"x", False), (b"x.brv", True), (b"x.brv+", True)]
    for some in itertools.permutations(files):
        assert shown(some) == {b"x": [b"x.brv+", b"x", b"x.brv"]}
    for some in itertools.permutations(files[:2]):
        assert shown(some) == {b"x": [b"x", b"x.brv"]}
    assert shown(files[1:]) == {b"x": [b"x.brv+", b"x.brv"]}


def test_a_text_file_is_no_rival() -> None:
    assert shown([(b"x", False), (b"x.brv", False), (b"x.brv+", False)]) == {
        b"x": [b"x"],
        b"x.brv": [b"x.brv"],
        b"x.brv+": [b"x.brv+"],
    }


def test_every_winner_is_a_candidate_for_its_name() -> None:
    names = [
        b"a" + b"".join(suffixes)
        for n in range(3)
        for suffixes in itertools.product((b".brv", b".brv+"), repeat=n)
    ]
    for kinds in itertools.product((False, True), repeat=len(names)):
        files = dict(zip(names, kinds, strict=True))
        for name, those in shown(files.items()).items():
            assert sorted(those, key=candidates(name).index) == those
            assert all(shown_as(file, files[file]) == name for file in those)
