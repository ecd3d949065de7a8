"""Models saved and loaded by several versions of safetensors.

BREVISFS_ROUNDS is how often each writer saves in the test of readers and writers.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import environment, run
from tests.mount.conftest import Mount

ROUNDS = int(os.environ.get("BREVISFS_ROUNDS", "12"))

pytestmark = pytest.mark.timeout(max(300, 2 * ROUNDS))

# A model of which every part tells which one it is: a mixture of two is noticed.
MODEL = textwrap.dedent(
    """
    import os, sys
    import numpy as np
    from safetensors.numpy import load_file, save_file

    def weights(number):
        chance = np.random.default_rng(number)
        parts = {f"layer.{i}": chance.normal(number, 0.01, (64, 500)).astype(np.float32) for i in range(6)}
        return {**parts, "number": np.array([number])}

    def check(found):
        for name, expected in weights(int(found["number"][0])).items():
            assert np.array_equal(found[name], expected), name
        return int(found["number"][0])
    """
)

SAVE = """
folder = sys.argv[1]
for number in range(5):
    save_file(weights(number), f"{folder}/m.safetensors")
    assert check(load_file(f"{folder}/m.safetensors")) == number
    for shard in range(3):
        save_file(weights(number + shard), f"{folder}/m-{shard}-of-3.safetensors")
"""

WRITER = """
path, first, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(first, first + rounds):
    save_file(weights(number), f"{path}.{first}")
    os.rename(f"{path}.{first}", path)
"""

READER = """
import mmap
path, rounds = sys.argv[1], int(sys.argv[2])
kept = None
while sys.stdin.buffer.raw.readline() != b"":
    check(load_file(path))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if kept is None or rounds % 3 == 0:
        kept, content = mapped, mapped[:]
    assert kept[:] == content
    rounds += 1
    print("read", flush=True)
"""


@pytest.mark.parametrize("version", ["installed", "0.5.3", "0.7.0", "0.8.0"])
def test_save_and_load(mounted: Mount, check: Callable[[dict[str, bytes]], None], version: str) -> None:
    python = Path(sys.executable) if version == "installed" else environment(f"safetensors-{version}")
    run(python, "-c", MODEL + SAVE, mounted.path)
    names = ["m.safetensors", *(f"m-{shard}-of-3.safetensors" for shard in range(3))]
    check({name: (mounted.path / name).read_bytes() for name in names})
    run(python, "-c", MODEL + f"[check(load_file(f'{mounted.path}/{{name}}')) for name in {names}]")
    run(python, "-c", MODEL + SAVE, mounted.path)
    check({name: (mounted.path / name).read_bytes() for name in names})


def test_readers_of_a_model_that_is_replaced(mounted: Mount) -> None:
    """Two writers, six readers: each load is one whole model, and old mappings stay what they were."""
    path = mounted.path / "m.safetensors"
    run(sys.executable, "-c", MODEL + f"save_file(weights(0), {str(path)!r})")
    command = [sys.executable, "-c"]
    readers = [
        subprocess.Popen(
            [*command, MODEL + READER, path, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for number in range(6)
    ]
    writers = [
        subprocess.Popen([*command, MODEL + WRITER, path, str(first), str(ROUNDS)]) for first in (1, 100_001)
    ]
    try:
        while any(writer.poll() is None for writer in writers):
            for reader in readers:
                assert reader.stdin is not None
                reader.stdin.write(b"\n")
                reader.stdin.flush()
            for reader in readers:
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"read\n"
    finally:
        for process in (*readers, *writers):
            process.communicate()
    assert [process.returncode for process in (*readers, *writers)] == [0] * 8
    mounted.drain()
    assert os.getxattr(path, "user.brevisfs.state") == b"archive"
    run(sys.executable, "-c", MODEL + f"check(load_file({str(path)!r}))")
