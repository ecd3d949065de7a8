"""The daemon is killed in the middle of what a client does: what was acknowledged is there afterwards.

BREVISFS_KILLS makes it longer, BREVISFS_KILLS_SEED another one.
"""

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from brevisfs.fs import MountOptions, RecompressionOptions, mount_background, umount
from brevisfs.fs._background import _to_json
from brevisfs.store import _syscalls
from tests.faults.test_every_step import recover, shown
from tests.mount.conftest import has_fuse
from tests.twins import model

KILLS = int(os.environ.get("BREVISFS_KILLS", "4"))
SEED = int(os.environ.get("BREVISFS_KILLS_SEED", "0"))

pytestmark = [
    pytest.mark.skipif(not has_fuse(), reason="mounting needs /dev/fuse and fusermount3"),
    pytest.mark.timeout(max(300, 30 * KILLS)),
]

State = dict[str, bytes]
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV)


class Client:
    """Saves and changes files; knows what must be there after each step, and after one cut off.

    `possible` are the states that the folder may be in, the last one once the step is done. `loose` are
    files that a cut-off step may have left half written, each with what it may hold.
    """

    def __init__(self, folder: Path, chance: random.Random, state: State) -> None:
        self.folder = folder
        self.chance = chance
        self.state = state
        self.possible = [state]
        self.loose: dict[str, Callable[[bytes], bool]] = {}
        self.doing = "nothing"

    def step(self) -> None:
        """Does one thing; `doing` is what. Raises OSError if the daemon dies."""
        steps = [self.save, self.save_aside, self.rename, self.exchange, self.remove, self.overwrite]
        step = self.chance.choice([*steps, self.pack, self.pack, self.pack, self.overwrite_links, self.mode])
        self.doing = step.__name__
        step()
        self.state = self.possible[-1]
        self.possible, self.loose = [self.state], {}

    def _name(self) -> str:
        return self.chance.choice(["a", "b", "d/a", "d/b"])

    def _existing(self) -> str | None:
        return self.chance.choice(sorted(self.state)) if self.state else None

    def save(self) -> None:
        name, data = self._name(), model(self.chance.randrange(1000))
        self.possible.append({**self.state, name: data})
        self.loose[name] = data.startswith
        _write(self.folder / name, data)

    def save_aside(self) -> None:
        name, data = self._name(), model(self.chance.randrange(1000))
        self.possible.append({**self.state, name: data})
        self.loose["aside"] = data.startswith
        _write(self.folder / "aside", data)
        os.rename(self.folder / "aside", self.folder / name)

    def rename(self) -> None:
        old, new = self._existing(), self._name()
        if old is None or old == new:
            return
        after = {**self.state, new: self.state[old]}
        del after[old]
        self.possible.append(after)
        os.rename(self.folder / old, self.folder / new)

    def exchange(self) -> None:
        one, other = self._existing(), self._existing()
        if one is None or other is None or one == other:
            return
        self.possible.append({**self.state, one: self.state[other], other: self.state[one]})
        _syscalls.exchange(-100, bytes(self.folder / one), -100, bytes(self.folder / other))

    def remove(self) -> None:
        name = self._existing()
        if name is not None:
            self.possible.append({key: data for key, data in self.state.items() if key != name})
            os.unlink(self.folder / name)

    def overwrite(self) -> None:
        name = self._existing()
        if name is not None:
            self._overwrite(name, [name])

    def overwrite_links(self) -> None:
        name = self._existing()
        if name is None:
            return
        self.possible.append({**self.state, "link": self.state[name]})
        os.link(self.folder / name, self.folder / "link")
        self.state = self.possible[-1]
        self._overwrite(name, [name, "link"])
        self.state = {key: data for key, data in self.possible[-1].items() if key != "link"}
        self.possible.append(self.state)
        os.unlink(self.folder / "link")

    def _overwrite(self, name: str, all_names: list[str]) -> None:
        old = self.state[name]
        at, patch = self.chance.randrange(len(old) + 1), self.chance.randbytes(700)
        new = old[:at] + patch + old[at + len(patch) :]

        def mixed(data: bytes) -> bool:
            same = data[:at] == old[:at] and data[at + len(patch) :] == old[at + len(patch) :]
            return same and len(data) in (len(old), len(new))

        self.possible.append({**self.state, **dict.fromkeys(all_names, new)})
        self.loose.update(dict.fromkeys(all_names, mixed))
        with open(self.folder / name, "r+b", buffering=0) as file:
            file.seek(at)
            file.write(patch)
            os.fsync(file.fileno())

    def mode(self) -> None:
        name = self._existing()
        if name is not None:
            os.chmod(self.folder / name, self.chance.choice([0o600, 0o640]))

    def pack(self) -> None:
        """Waits until all that is to be packed is packed."""
        os.setxattr(self.folder, "user.brevisfs.recompression", b"drain")
        while json.loads(os.getxattr(self.folder, "user.brevisfs.recompression"))["left"]:
            time.sleep(0.01)

    def check(self, seen: State) -> State:
        """Asserts that the folder is as it may be; returns how it is."""
        assert any(self._fits(seen, state) for state in self.possible), (
            {name: len(data) for name, data in seen.items()},
            [{name: len(data) for name, data in state.items()} for state in self.possible],
        )
        return seen

    def _fits(self, seen: State, state: State) -> bool:
        for name in seen.keys() | state.keys():
            if name in self.loose and name in seen and self.loose[name](seen[name]):
                continue
            if name == "aside" and name not in seen:
                continue
            if seen.get(name) != state.get(name):
                return False
        return True


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


OPTIONS = MountOptions(
    cache_size=32 << 20,
    threads=1,
    recompression=RecompressionOptions(settle=0, profile="fast", max_load=1000),
)


def files(folder: Path) -> State:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(store: Path) -> State:
    """What a mount of a store would show."""
    return {name: file.content for name, file in shown(store).items()}


@contextmanager
def mounted(store: Path, folder: Path) -> Iterator[None]:
    mount_background(store, folder, replace(OPTIONS, log=store.with_name("log")))
    try:
        yield
    finally:
        umount(folder)


def start(store: Path, folder: Path, armed: Path) -> subprocess.Popen[bytes]:
    """A daemon that serves until it dies as tests.faults.dying_daemon says."""
    ready, answer = os.pipe()
    module = [sys.executable, "-m", "tests.faults.dying_daemon", str(armed)]
    with open(ready, "rb") as pipe:
        daemon = subprocess.Popen(
            [*module, str(store), str(folder), _to_json(OPTIONS), str(answer)],
            pass_fds=(answer,),
            stderr=subprocess.DEVNULL,
        )
        os.close(answer)
        assert pipe.read() == b"null"
    return daemon


def test_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    store, folder, armed = tmp_path / "store", tmp_path / "mnt", tmp_path / "armed"
    for path in (store, folder, store / "d"):
        path.mkdir()
    killed_in: dict[str, int] = {}
    state: State = {}
    published = 0
    for number in range(KILLS):
        daemon = start(store, folder, armed)
        client = Client(folder, chance, state)
        try:
            for _ in range(chance.randrange(6)):
                client.step()
            armed.write_text(str(chance.randrange(14)))
            while daemon.poll() is None:
                client.step()
        except OSError as error:
            assert error.errno in _DEAD, error
        finally:
            daemon.kill()
            daemon.wait()
            armed.unlink(missing_ok=True)
        names = [path.name for path in store.rglob("*")]
        published += any(f"{name}.brv" in names for name in names) or bool(
            os.listdir(store / ".brevisfs/tmp")
        )
        copy = tmp_path / f"copy{number}"
        subprocess.run(["cp", "-a", store, copy], check=True)
        try:
            client.check(contents(copy))
            recover(copy)
            client.check(contents(copy))
            with mounted(store, folder):
                state = client.check(files(folder))
                client.possible = [client.check(files(folder))]
                Client(folder, chance, {}).pack()
                assert client.check(files(folder)) == state
            for each in (copy, store):
                check_order(each)
        except BaseException:
            print(f"seed {SEED}, kill {number}, in {client.doing}")
            raise
        killed_in[client.doing] = killed_in.get(client.doing, 0) + 1
        for extra in ("aside", "link"):
            (store / extra).unlink(missing_ok=True)
            (store / f"{extra}.brv").unlink(missing_ok=True)
            state.pop(extra, None)
    print(killed_in, published)
    assert published >= KILLS / 10, "the kills did not hit a publish"


def check_order(store: Path) -> None:
    """Nothing that only a change under way has is in the store."""
    assert os.listdir(store / ".brevisfs/tmp") == []
    names = {str(path.relative_to(store)) for path in store.rglob("*") if ".brevisfs" not in path.parts}
    assert not any(name.endswith(".brv+") or f"{name}.brv" in names for name in names)
    assert not {"intent", "intended"} & set(os.listdir(store / ".brevisfs"))
