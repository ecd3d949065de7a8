"""Models that are written become archives, and nobody notices."""

import errno
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

from brevisfs.fs import RecompressionOptions, umount
from tests.mount.conftest import Mount, Mounter
from tests.mount.test_tree import access_list
from tests.stores import add_archive, flip, noise
from tests.twins import model

PACKING = RecompressionOptions(settle=0, profile="fast", max_load=1000)
NOT_PACKING = RecompressionOptions(enabled=False)


def state(path: Path) -> bytes:
    return os.getxattr(path, "user.brevisfs.state")


def soon(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def visible(path: Path) -> tuple[Any, ...]:
    """All of a file's metadata but the blocks and the time of access."""
    status = path.lstat()
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return (
        *(status.st_mode, status.st_ino, status.st_nlink, status.st_uid, status.st_gid, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns, attributes),
    )


@pytest.fixture
def packing(mount: Mounter) -> Mount:
    return mount(recompression=PACKING)


def test_nobody_notices(packing: Mount, mount: Mounter, store: Path) -> None:
    data = model(1)
    folder = packing.path / "folder"
    folder.mkdir()
    path = folder / "m.safetensors"
    with path.open("wb") as writer:
        writer.write(data)
        os.chmod(path, 0o640)
        os.chown(path, 33, 34)
        os.setxattr(path, "user.note", b"hello")
        os.setxattr(path, "system.posix_acl_access", access_list(65534))
        os.utime(path, ns=(10**18 + 5, 10**18 + 7))
        before = visible(path)
        reader = path.open("rb")
        mapped = mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ)
        time_of_folder = folder.stat().st_mtime_ns, folder.stat().st_ctime_ns
    assert state(path) == b"raw"
    packing.drain()
    assert state(path) == b"archive"
    assert sorted(os.listdir(store / "folder")) == ["m.safetensors.brv"]
    subprocess.run(["sysctl", "-q", "vm.drop_caches=3"], check=False)
    assert visible(path) == before
    assert (folder.stat().st_mtime_ns, folder.stat().st_ctime_ns) == time_of_folder
    assert mapped[:] == data == reader.read()
    assert os.fstat(reader.fileno()).st_nlink == 1
    assert path.read_bytes() == data
    assert path.stat().st_blocks * 512 < len(data)
    mapped.close()
    reader.close()
    packing.settle()
    umount(packing.path)
    again = mount(recompression=PACKING)
    assert visible(path)[2:] == before[2:]
    os.chmod(path, 0o600)
    assert path.stat().st_ctime_ns > before[-2]
    assert state(path) == b"archive"
    again.drain()


def test_content_and_not_the_name_decides(packing: Mount) -> None:
    (packing.path / "blob").write_bytes(model(1))
    (packing.path / "text.safetensors").write_bytes(b"no model" * 1000)
    (packing.path / "cut.safetensors").write_bytes(model(2)[:-1])
    (packing.path / ("x" * 251)).write_bytes(model(3))
    (packing.path / ("y" * 250)).write_bytes(model(3))
    packing.drain()
    states = {path.name: state(path) for path in packing.path.iterdir()}
    assert states == {
        "blob": b"archive",
        "text.safetensors": b"raw",
        "cut.safetensors": b"raw",
        "x" * 251: b"raw",
        "y" * 250: b"archive",
    }


def test_what_saves_nothing_is_tried_once(packing: Mount, mount: Mounter) -> None:
    path = packing.path / "m"
    path.write_bytes(save({"noise": np.frombuffer(noise(100_000), np.uint8)}))
    packing.drain()
    assert (state(path), packing.packing()["refused"]) == (b"raw", 1)
    umount(packing.path)
    again = mount(recompression=PACKING)
    again.drain()
    assert (state(path), again.packing()["refused"]) == (b"raw", 0)
    path.write_bytes(model(1))
    again.drain()
    assert state(path) == b"archive"


def test_a_file_is_left_alone_while_it_can_be_written(packing: Mount) -> None:
    data = model(1)
    path = packing.path / "m"
    with path.open("wb") as one:
        one.write(data)
        one.flush()
        with path.open("r+b"):
            pass
        assert packing.packing()["left"] == 0
    with path.open("rb"):
        packing.drain()
        assert state(path) == b"archive"


def test_header_first_and_the_rest_later(packing: Mount) -> None:
    """As distributed checkpoints are written."""
    data = model(1)
    header = 8 + int.from_bytes(data[:8], "little")
    path = packing.path / "m"
    path.write_bytes(data[:header])
    packing.drain()
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(data[header:])
    assert state(path) == b"raw"
    packing.drain()
    assert state(path) == b"archive"
    assert path.read_bytes() == data


def test_linked_files(packing: Mount) -> None:
    """A raw file with links stays raw; an archive can be linked, and stays one file when it is written to."""
    data = bytearray(model(1))
    (packing.path / "d").mkdir()
    a, b, c = (packing.path / name for name in ("a", "b", "d/c"))
    a.write_bytes(data)
    os.link(a, b)
    packing.drain()
    assert state(a) == b"raw"
    b.unlink()
    a.write_bytes(data)
    packing.drain()
    os.link(a, b)
    os.link(b, c)
    assert [state(path) for path in (a, b, c)] == [b"archive"] * 3
    assert len({path.stat().st_ino for path in (a, b, c)}) == 1
    with b.open("rb") as reader, c.open("r+b") as writer:
        writer.seek(1000)
        writer.write(b"changed")
        writer.flush()
        data[1000:1007] = b"changed"
        assert reader.read() == a.read_bytes() == data
    assert [(state(path), path.stat().st_nlink) for path in (a, b, c)] == [(b"raw", 3)] * 3
    assert len({path.stat().st_ino for path in (a, b, c)}) == 1


def test_metadata_names_and_links_do_not_decode(packing: Mount) -> None:
    a, b = packing.path / "a", packing.path / "b"
    a.write_bytes(model(1))
    packing.drain()
    os.chmod(a, 0o600)
    os.utime(a, ns=(1, 2))
    os.setxattr(a, "user.a", b"b")
    os.truncate(a, a.stat().st_size)
    a.rename(b)
    os.link(b, a)
    with b.open("r+b"):
        pass
    assert (state(a), state(b)) == (b"archive", b"archive")
    assert b.stat().st_mode & 0o777 == 0o600
    assert "unpacked" not in packing.log.read_text()


def test_truncation_at_open_does_not_decode(packing: Mount) -> None:
    data = model(1)
    path = packing.path / "m"
    path.write_bytes(data)
    packing.drain()
    number = path.stat().st_ino
    with path.open("rb") as reader:
        path.write_bytes(b"new")
        assert reader.read() == b"new"
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino == number
    assert "unpacked" not in packing.log.read_text()


def test_a_damaged_archive_cannot_be_written_to_and_stays(mount: Mounter, store: Path) -> None:
    add_archive(store / "m.brv", [noise(200_000)])
    flip(store / "m.brv", 70_000)
    before = (store / "m.brv").read_bytes()
    mounted = mount(recompression=NOT_PACKING)
    with pytest.raises(OSError) as caught, (mounted.path / "m").open("r+b", buffering=0) as file:
        file.write(b"x")
    assert caught.value.errno == errno.EIO
    assert (store / "m.brv").read_bytes() == before
    assert os.listdir(store / ".brevisfs/tmp") == []
    assert os.listdir(store) == [".brevisfs", "m.brv"] or os.listdir(store) == ["m.brv", ".brevisfs"]


@pytest.fixture
def large(tmp_path: Path) -> bytes:
    """A model that takes a worker a while."""
    chance = np.random.default_rng(0)
    weights = {str(part): chance.normal(0, 0.02, (500, 2000)).astype(np.float32) for part in range(8)}
    save_file(weights, tmp_path / "large")
    return (tmp_path / "large").read_bytes()


@pytest.fixture
def slowly(mount: Mounter) -> Mount:
    """A mount that packs as well as it can, which takes a while."""
    return mount(recompression=replace(PACKING, profile="dense"))


def begin_packing(mounted: Mount, path: Path, data: bytes) -> None:
    """Returns when a worker is at work."""
    mounted.command("drain")
    path.write_bytes(data)
    soon(lambda: any(job["total"] for job in mounted.packing()["packing"]))
    mounted.command("undrain")


def test_renamed_while_it_is_packed(slowly: Mount, large: bytes) -> None:
    (slowly.path / "d").mkdir()
    begin_packing(slowly, slowly.path / "m", large)
    (slowly.path / "m").rename(slowly.path / "d/n")
    (slowly.path / "d").rename(slowly.path / "e")
    os.chmod(slowly.path / "e/n", 0o604)
    slowly.drain()
    path = slowly.path / "e/n"
    assert slowly.packing()["packed"] == 1
    assert (state(path), path.stat().st_mode & 0o777) == (b"archive", 0o604)
    assert path.read_bytes() == large


def test_changed_and_removed_while_it_is_packed(slowly: Mount, store: Path, large: bytes) -> None:
    path = slowly.path / "m"
    begin_packing(slowly, path, large)
    with path.open("r+b", buffering=0) as file:
        file.seek(len(large) // 2)
        file.write(b"changed")
        assert slowly.packing()["packed"] == 0
        soon(lambda: not slowly.packing()["packing"])
    soon(lambda: bool(slowly.packing()["packing"]))
    path.unlink()
    slowly.drain()
    assert slowly.packing()["packed"] == 0
    assert os.listdir(store) == [".brevisfs"]
    assert os.listdir(store / ".brevisfs/tmp") == []


def workers(daemon: int) -> list[int]:
    found = Path(f"/proc/{daemon}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_a_worker_that_is_killed_costs_nothing_but_its_job(slowly: Mount, store: Path, large: bytes) -> None:
    begin_packing(slowly, slowly.path / "m", large)
    for worker in workers(slowly.daemon):
        os.kill(worker, signal.SIGKILL)
    soon(lambda: bool(slowly.packing()["failed"]))
    (failed,) = slowly.packing()["failed"]
    assert (failed["name"], failed["tries"]) == ("m", 1)
    assert (slowly.path / "m").read_bytes() == large
    assert os.listdir(store / ".brevisfs/tmp") == []
    (slowly.path / "n").write_bytes(model(1))
    slowly.drain()
    assert state(slowly.path / "n") == b"archive"
    assert state(slowly.path / "m") == b"archive", "what failed is tried once more"


def test_workers_are_modest_and_alone(slowly: Mount, large: bytes) -> None:
    begin_packing(slowly, slowly.path / "m", large)
    (worker,) = workers(slowly.daemon)
    soon(lambda: os.sched_getscheduler(worker) == os.SCHED_IDLE)
    session = Path(f"/proc/{worker}/autogroup")
    soon(lambda: not session.exists() or session.read_text().endswith("nice 19\n"))
    open_files = [os.readlink(path) for path in Path(f"/proc/{worker}/fd").iterdir()]
    assert not any("fuse" in path or path.endswith("/lock") for path in open_files)
    slowly.command("drain")
    soon(lambda: not session.exists() or session.read_text().endswith("nice 0\n"))
    slowly.command("undrain")
    soon(lambda: not session.exists() or session.read_text().endswith("nice 19\n"))
    os.kill(slowly.daemon, signal.SIGKILL)
    soon(lambda: not Path(f"/proc/{worker}").exists())
    subprocess.run(["fusermount3", "-u", "-z", str(slowly.path)], check=True)


def test_paused_and_resumed(slowly: Mount, large: bytes) -> None:
    slowly.command("pause")
    (slowly.path / "m").write_bytes(model(1))
    soon(lambda: slowly.packing()["left"] == 1)
    with pytest.raises(OSError):
        slowly.command("nonsense")
    slowly.command("drain")
    slowly.drain()
    slowly.command("undrain")
    assert slowly.packing()["packed"] == 1
    slowly.command("resume")
    begin_packing(slowly, slowly.path / "n", large)
    slowly.command("pause")
    (worker,) = workers(slowly.daemon)
    soon(lambda: is_stopped(worker))
    assert slowly.packing()["left"] == 1
    slowly.command("resume")
    slowly.drain()
    assert state(slowly.path / "n") == b"archive"
    assert (slowly.path / "n").read_bytes() == large


def test_a_worker_stands_still_for_readers_but_not_all_the_time(
    slowly: Mount, store: Path, large: bytes
) -> None:
    add_archive(store / "read.brv", [noise(1 << 20)])
    begin_packing(slowly, slowly.path / "m", large)
    (worker,) = workers(slowly.daemon)
    ended = threading.Event()

    def read() -> None:
        with mmap.mmap(-1, 1 << 20) as page:
            file = os.open(slowly.path / "read", os.O_RDONLY | os.O_DIRECT)
            while not ended.is_set():
                os.preadv(file, [page], 0)
            os.close(file)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for still in (True, False, True, False):
            soon(lambda still=still: is_stopped(worker) is still)  # type: ignore[misc]
    finally:
        ended.set()
        reader.join()
    slowly.drain()
    assert state(slowly.path / "m") == b"archive"


def test_a_paused_worker_ends_with_the_daemon(slowly: Mount, large: bytes) -> None:
    begin_packing(slowly, slowly.path / "m", large)
    slowly.command("pause")
    (worker,) = workers(slowly.daemon)
    os.kill(slowly.daemon, signal.SIGKILL)
    soon(lambda: not Path(f"/proc/{worker}").exists())
    subprocess.run(["fusermount3", "-u", "-z", str(slowly.path)], check=True)


def test_work_goes_on_after_a_restart(mount: Mounter) -> None:
    mounted = mount(recompression=NOT_PACKING)
    (mounted.path / "d").mkdir()
    (mounted.path / "d/m").write_bytes(model(1))
    assert mounted.packing()["left"] == 0
    umount(mounted.path)
    again = mount(recompression=PACKING)
    soon(lambda: not again.packing()["searching"])
    again.drain()
    assert state(again.path / "d/m") == b"archive"
    assert (again.path / "d/m").read_bytes() == model(1)


@pytest.fixture
def small_disk(tmp_path: Path, store: Path) -> Iterator[Path]:
    """The store on a disk of 96 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounts a filesystem")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", store], check=False)
    if done.returncode:
        pytest.skip("cannot mount a filesystem")
    yield store
    subprocess.run(["umount", "-l", store], check=True)


def test_what_a_former_run_left_is_put_in_order(mount: Mounter, store: Path) -> None:
    """Of one name: an equal archive is removed, any other is kept where it can be found."""
    data = model(1)
    for name in ("equal", "other"):
        (store / name).write_bytes(data)
    add_archive(store / "equal.brv", [data])
    add_archive(store / "other.brv", [noise(100)])
    add_archive(store / "pending.brv+", [data])
    (store / "pending").write_bytes(b"what it was to replace")
    (store / ".brevisfs/tmp").mkdir(parents=True)
    (store / ".brevisfs/tmp/1-1").write_bytes(b"half of something")
    mounted = mount(recompression=NOT_PACKING)
    soon(lambda: not mounted.packing()["searching"])
    assert {path.name: path.read_bytes() for path in mounted.path.iterdir()} == dict.fromkeys(
        ("equal", "other", "pending"), data
    )
    assert sorted(os.listdir(store)) == [".brevisfs", "equal", "other", "pending.brv"]
    assert os.listdir(store / ".brevisfs/tmp") == []
    lost = sorted(path.name for path in (store / ".brevisfs/lost+found").glob("*/*"))
    assert lost == ["other.brv", "pending"]
    assert mounted.packing()["lost"] == 2
    assert mounted.log.read_text().count("lost its name") == 2


def test_a_full_disk(small_disk: Path, mount: Mounter) -> None:
    mounted = mount(recompression=PACKING)
    there = os.statvfs(mounted.path)
    assert there.f_blocks * there.f_frsize == 96 << 20
    filler = mounted.path / "filler"
    filler.write_bytes(bytes(40 << 20))
    (mounted.path / "m").write_bytes(model(1))
    soon(lambda: bool(mounted.packing()["failed"]))
    assert "free space" in mounted.packing()["failed"][0]["error"]
    assert (mounted.path / "m").read_bytes() == model(1)
    with pytest.raises(OSError) as caught, (mounted.path / "more").open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert (mounted.path / "more").stat().st_size > 40 << 20
    filler.unlink()
    (mounted.path / "more").unlink()
    shutil.copyfile(mounted.path / "m", mounted.path / "n")
    mounted.drain()
    assert state(mounted.path / "n") == b"archive"
    assert load_file(mounted.path / "n").keys() == {"weights", "step"}
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with pytest.raises(OSError) as caught, (mounted.path / "n").open("r+b", buffering=0) as file:
        file.write(b"x")
    assert caught.value.errno == errno.ENOSPC
    assert state(mounted.path / "n") == b"archive"
    assert (mounted.path / "n").read_bytes() == model(1)
