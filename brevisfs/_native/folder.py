"""What the files of a folder are, learned in one call for all of them, without the interpreter."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from brevisfs._native._brevis import ffi, lib

_STATUS = struct.Struct("=qQQ7q3d5qQ8x")
_MOUNT = struct.Struct(f"={_STATUS.size - 8}xQ")
_STATE = struct.Struct(f"{_STATUS.size}s")
_LOOK = struct.Struct("=q??6x")


class Files(NamedTuple):
    """Files as they were found: two that are equal have the same names in the same states."""

    names: bytes
    states: bytes

    def each(self) -> Iterator[tuple[bytes, bytes]]:
        """Each name with its state, see `statuses`."""
        states = chain.from_iterable(_STATE.iter_unpack(self.states))
        return zip(self.names.split(b"\0"), states, strict=False)


NOT_OPENED: int = lib.BRV_NOT_OPENED
NO_HEAD: int = lib.BRV_NO_HEAD


def files_in(folder: int) -> Files:
    """All files of a folder that is open as `folder`. Raises OSError."""
    return _found(lambda files: lib.brv_files_in(folder, files))


def files_named(folder: int, names: Sequence[bytes]) -> Files:
    """Those that there are of these. Raises OSError."""
    return _found(lambda files: lib.brv_files_named(folder, _joined(names), len(names), files))


def statuses(states: Iterable[bytes]) -> list[os.stat_result]:
    """What lstat says of each file."""
    return list(map(os.stat_result, _STATUS.iter_unpack(b"".join(states))))


def mount_of(state: bytes) -> int | None:
    """The mount that a file is on, None if that cannot be told."""
    mount: int = _MOUNT.unpack(state)[0]
    return mount or None


def look_at(
    folder: int, names: Sequence[bytes], states: Sequence[bytes], inside: Sequence[bool]
) -> list[tuple[int, bool, bool]]:
    """Looks at files that had these states; into those that are regular and for which `inside` says so.

    Of each: the length of its original, NO_HEAD if its head does not tell, NOT_OPENED if it could not be
    looked into; whether it was in another state by then; whether it has no extended attributes.
    """
    looks = ffi.new("brv_look[]", len(names))
    before = ffi.from_buffer("brv_state[]", b"".join(states))
    lib.brv_look_at(folder, _joined(names), before, len(names), bytes(inside), looks)
    return list(_LOOK.iter_unpack(ffi.buffer(looks)))


Way = Sequence[tuple[bytes, int, int]]
"""Folders on the way down from a root: name, device and inode of each, which it must be."""


def is_at_once(folder: int) -> bool:
    """Whether `find_at_once` and `reopen` wait for nothing on the filesystem of a folder."""
    return bool(lib.brv_is_at_once(folder))


def find_at_once(root: int, way: Way, files: Sequence[bytes]) -> tuple[int, bytes] | None:
    """The number of the first there is of some files, and its state, by what the kernel has in memory.

    None if that does not tell, or a folder is another one. Raises FileNotFoundError if there is none of them.
    """
    which, state = ffi.new("size_t *"), ffi.new("brv_state *")
    error = lib.brv_find_at_once(root, _names(way, files), _known(way), len(way), len(files), which, state)
    if error == errno.ENOENT:
        raise FileNotFoundError(error, os.strerror(error), files[0])
    return None if error else (which[0], bytes(ffi.buffer(state)))


def reopen(
    root: int, way: Way, files: Sequence[bytes], identity: tuple[int, int, int, int, int]
) -> tuple[int, int] | None:
    """As find_at_once, opens the file for reading if it is still the one that is known.

    `identity`: device, inode, size, and the times of content and change. A descriptor and the number of the
    file; None if anything is not as it is known, or the memory does not tell.
    """
    which, known = ffi.new("size_t *"), _known(way)
    file = known + len(way)
    file[0] = (*identity[:3], identity[3:])
    opened = lib.brv_reopen(root, _names(way, files), known, len(way), file, len(files), which)
    return None if opened < 0 else (opened, which[0])


def _known(way: Way) -> Any:
    """The folders, and room for a file."""
    known = ffi.new("brv_known[]", len(way) + 1)
    for place, (_, device, inode) in zip(known, way, strict=False):
        place.device, place.inode = device, inode
    return known


def _names(way: Way, files: Sequence[bytes]) -> bytes:
    return _joined([*(name for name, _, _ in way), *files])


def _joined(names: Sequence[bytes]) -> bytes:
    return b"\0".join([*names, b""])


def _found(find: Callable[[Any], int]) -> Files:
    files = ffi.new("brv_files *")
    try:
        error = find(files)
        names = ffi.unpack(files.names, files.length) if files.length else b""
        if error:
            at = names.split(b"\0")[-2] if names.count(b"\0") > files.n else None
            raise OSError(error, os.strerror(error), at)
        return Files(names, bytes(ffi.buffer(files.states, files.n * _STATE.size)) if files.n else b"")
    finally:
        lib.brv_files_free(files)
