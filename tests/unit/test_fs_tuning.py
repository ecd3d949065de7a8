"""What malloc keeps for the daemon's threads."""

import ctypes
import subprocess
import sys

import pytest

FREED_BY_THREADS = """
import ctypes, threading
from brevisfs.fs._tuning import spare_memory
spare_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_there = threading.Barrier(6)
def work():
    all_there.wait()
    libc.free(ctypes.c_void_p(libc.malloc(5000)))
    all_there.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another libc than glibc")
def test_threads_share_an_arena() -> None:
    said = subprocess.run(
        [sys.executable, "-c", FREED_BY_THREADS], check=True, capture_output=True, text=True
    )
    assert said.stdout.count("<heap nr=") == 1
