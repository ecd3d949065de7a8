"""Which name in the mount a file of the store has, and which files can stand for a name.

`X` in the mount is the first of `X.brv+`, `X` and `X.brv` that is there, the suffixed ones counting only
if they are archives. A file with such a suffix that is no archive is itself, under its own name.
"""

from collections.abc import Iterable

ARCHIVE_SUFFIX = b".brv"
PENDING_SUFFIX = b".brv+"
PRIVATE_FOLDER = b".brevisfs"
LONGEST_NAME = 255 - len(PENDING_SUFFIX)
"""Bytes that a name may have for the suffixes to fit."""

_SUFFIXES = (ARCHIVE_SUFFIX, PENDING_SUFFIX)


def is_reserved(name: bytes) -> bool:
    """Whether a file of this name is something else than itself if it is an archive."""
    return name.endswith(_SUFFIXES) and name not in _SUFFIXES


def shown_as(name: bytes, is_archive: bool) -> bytes:
    """The name in the mount of a file of the store, which another file may win."""
    if is_archive:
        for suffix in _SUFFIXES:
            if name.endswith(suffix) and name != suffix:
                return name.removesuffix(suffix)
    return name


def candidates(name: bytes) -> tuple[bytes, bytes, bytes]:
    """The files that can stand for a name of the mount, the winner first."""
    return name + PENDING_SUFFIX, name, name + ARCHIVE_SUFFIX


def ranked(files: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """Name in the mount → its files in the store, the winner first, of (name as shown_as tells it, file)."""
    found: dict[bytes, list[bytes]] = {}
    for name, file in files:
        found.setdefault(name, []).append(file)
    for name, those in found.items():
        if len(those) > 1:
            those.sort(key=candidates(name).index)
    return found
