"""A hub's client that keeps its cache, and folders of models, in a mount."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tests.clients.conftest import environment, run
from tests.clients.server import COMMIT, REPOSITORY, serving
from tests.mount.conftest import Mount

DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download({repository!r}, **{where!r}))
"""


def test_cache_and_local_folder(
    mounted: Mount, check: Callable[[dict[str, bytes]], None], data: bytes, tmp_path: Path
) -> None:
    python = environment("hub")
    files = {"model.safetensors": data, "config.json": b'{"a": 1}'}

    def download(url: str, *, offline: bool = False, **where: str) -> Path:
        settings = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": str(int(offline)),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        script = DOWNLOAD.format(repository=REPOSITORY, where=where)
        return Path(run(python, "-c", script, env=settings).splitlines()[-1])

    with serving(files) as server:
        cache = str(mounted.path / "hub")
        found = download(server.url, cache_dir=cache)
        assert server.served == sum(map(len, files.values()))
        blobs = Path("hub", f"models--{REPOSITORY.replace('/', '--')}", "blobs")
        check({str(blobs / hashlib.sha256(data).hexdigest()): data})
        assert found.name == COMMIT
        for each in (found, download(server.url, offline=True, cache_dir=cache)):
            assert {path.name: path.read_bytes() for path in each.iterdir()} == files
        settings = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
        hf = python.with_name("hf")
        run(hf, "cache", "verify", REPOSITORY, "--cache-dir", cache, env=settings)
        before = server.served
        local = str(mounted.path / "local")
        download(server.url, local_dir=local)
        check({"local/model.safetensors": data})
        served = server.served
        assert served > before
        download(server.url, local_dir=local)
        assert server.served == served, "the second run downloads nothing"
        check({"local/model.safetensors": data})
