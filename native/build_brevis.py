"""cffi builder of brevisfs._native._brevis (API mode) from the C sources beside this file."""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = [
    "checksum.c",
    "classes.c",
    "decode.c",
    "encode.c",
    "extents.c",
    "fetch.c",
    "folder.c",
    "front.c",
    "huffman.c",
    "interpose.c",
    "kernels_avx2.c",
    "kernels_avx512.c",
    "kernels_scalar.c",
    "line.c",
    "plan_classes.c",
    "plan_cost.c",
    "plan_count.c",
    "plan_split.c",
    "program.c",
    "programs.c",
    "rans.c",
    "read.c",
    "reading.c",
    "scratch.c",
    "section.c",
    "tunstall.c",
]


def declarations() -> str:
    """The public headers without what cffi's parser does not take: comments, includes, guards."""
    text = "".join((HERE / name).read_text() for name in ("brevis.h", "plan.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "brevisfs._native._brevis",
    '#include "brevis.h"\n#include "plan.h"',
    include_dirs=["native"],
    sources=[f"native/{name}" for name in SOURCES],
    depends=[f"native/{p.name}" for p in HERE.glob("*.h")],
    libraries=["zstd"],
    extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
