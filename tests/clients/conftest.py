"""A mount that packs at once, and models to save in it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from brevisfs.fs import RecompressionOptions
from tests.mount.conftest import Mount, Mounter, mount, store

__all__ = ["mount", "store"]

ENVIRONMENTS = os.environ.get("BREVISFS_CLIENTS")
"""Where the Python environments of clients are, see scripts/clients.sh."""


@pytest.fixture
def mounted(mount: Mounter) -> Mount:
    return mount(recompression=RecompressionOptions(settle=0, profile="fast", max_load=1000))


@pytest.fixture(scope="session")
def data() -> bytes:
    """A model of some MiB."""
    chance = np.random.default_rng(0)
    weights = {str(layer): chance.normal(0, 0.02, (300, 1000)).astype(np.float32) for layer in range(3)}
    return save({**weights, "step": np.arange(10)})


@pytest.fixture
def check(mounted: Mount) -> Callable[[dict[str, bytes]], None]:
    """Asserts what files of the mount hold: now, and after they were packed and the caches dropped."""

    def compare(expected: dict[str, bytes]) -> None:
        for name, content in expected.items():
            assert (mounted.path / name).read_bytes() == content, name

    def check(expected: dict[str, bytes]) -> None:
        compare(expected)
        mounted.drain()
        for name, content in expected.items():
            kind = os.getxattr(mounted.path / name, "user.brevisfs.state")
            assert kind == (b"archive" if b'"dtype"' in content else b"raw"), name
        subprocess.run(["sysctl", "-q", "vm.drop_caches=3"], check=False)
        compare(expected)

    return check


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}")


def environment(name: str) -> Path:
    """The Python of a client's environment; skips the test if there is none."""
    python = Path(ENVIRONMENTS or "/nonexistent", name, "bin/python")
    if not python.exists():
        pytest.skip("needs the environments of scripts/clients.sh")
    return python


def run(*command: object, **keywords: object) -> str:
    """Runs a client's command and returns what it says."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command], capture_output=True, text=True, timeout=200, **keywords
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    said: str = done.stdout
    return said
