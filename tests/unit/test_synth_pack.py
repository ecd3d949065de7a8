"""Packing: sections tile the file, the archive decodes to it, and nothing depends on the threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from brevisfs import archive, dsl
from brevisfs.archive import Kind, Reader
from brevisfs.safetensors import NotSafetensors, parse
from brevisfs.synth import PackReport, Profile, SourceChanged, pack
from brevisfs.synth._sections import Cut, sections
from tests.plans import model

Packer = Callable[..., tuple[PackReport, int]]


def floats(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).normal(size=count).astype("<f4").tobytes()


def mixed() -> bytes:
    """Every kind of section: header, large tensors, groups of small ones, empty ones, odd dtypes."""
    return model(
        {
            "embed": ("F32", [300, 400], floats(120_000)),
            "ids": ("I64", [1, 512], np.arange(512, dtype="<i8").tobytes()),
            "a.bias": ("F32", [100], floats(100, 1)),
            "a.scale": ("F32", [], floats(1, 2)),
            "none": ("F32", [0, 4], b""),
            "mask": ("BOOL", [3], b"\x01\x00\x01"),
            "b.weight": ("BF16", [200, 200], floats(20_000, 3)),
            "tiny": ("I8", [1], b"\x05"),
            "packed": ("F4", [10_000], floats(1_250, 4)),
            "ones": ("F32", [40_000], np.ones(40_000, "<f4").tobytes()),
            "new": ("F7_NEW", [5_001], floats(2_000, 5)[:5_001]),
        },
        {"format": "pt"},
    )


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Packer]:
    """Packs bytes; gives the report and a descriptor of the archive, closed at the end."""
    opened: list[int] = []

    def run(data: bytes, **options: object) -> tuple[PackReport, int]:
        source = tmp_path / f"source{len(opened)}"
        source.write_bytes(data)
        source_fd = os.open(source, os.O_RDONLY)
        out_fd = os.open(tmp_path / f"out{len(opened)}", os.O_RDWR | os.O_CREAT)
        opened.extend((source_fd, out_fd))
        return pack(source_fd, out_fd, **options), out_fd  # type: ignore[arg-type]

    yield run
    for fd in opened:
        os.close(fd)


def restored(fd: int) -> bytes:
    reader = Reader(fd)
    out = bytearray(reader.size)
    reader.read_into(0, out)
    return bytes(out)


def contents(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.mark.parametrize("profile", list(Profile))
def test_the_archive_decodes_to_the_file(packed: Packer, profile: Profile) -> None:
    data = mixed()
    report, fd = packed(data, profile=profile, jobs=2)
    assert restored(fd) == data
    assert archive.verify(fd).ok
    assert report.original == len(data)
    assert report.stored == os.fstat(fd).st_size
    assert report.sha256 == hashlib.sha256(data).digest() == Reader(fd).sha256
    assert report.sections == len(Reader(fd).sections)


def test_threads_change_nothing(packed: Packer) -> None:
    archives = {contents(packed(mixed(), jobs=jobs)[1]) for jobs in (1, 2, 7)}
    assert len(archives) == 1


def test_sections_tile_the_file() -> None:
    data = mixed()
    cuts = list(sections(parse(len(data), lambda at, length: data[at : at + length])))
    assert cuts[0].kind == Kind.HEADER
    ends = [cut.offset + cut.nbytes for cut in cuts]
    assert [cut.offset for cut in cuts] == [0, *ends[:-1]]
    assert ends[-1] == len(data)
    kinds = [(cut.kind, cut.dtype) for cut in cuts[1:]]
    assert kinds == [
        (Kind.TENSOR, "F32"),
        (Kind.TENSOR, "I64"),
        (Kind.GROUP, None),
        (Kind.TENSOR, "BF16"),
        (Kind.TENSOR, "I8"),
        (Kind.TENSOR, "F4"),
        (Kind.TENSOR, "F32"),
        (Kind.TENSOR, "F7_NEW"),
    ]


def cuts_of(count: int, dtype: str, size: int) -> list[Cut]:
    data = model({f"t{i}": (dtype, [size // 4], bytes(size)) for i in range(count)})
    return list(sections(parse(len(data), lambda at, length: data[at : at + length])))


def test_small_tensors_of_one_dtype_are_a_group_of_it() -> None:
    assert [(cut.kind, cut.dtype) for cut in cuts_of(9, "F32", 64)[1:]] == [(Kind.GROUP, "F32")]
    assert [cut.kind for cut in cuts_of(1, "F32", 64)[1:]] == [Kind.TENSOR]
    assert [cut.kind for cut in cuts_of(2, "F32", 4096)[1:]] == [Kind.TENSOR, Kind.TENSOR]


def tied() -> bytes:
    """Tensors that come again: under another dtype, and with another end."""
    weights = floats(60_000)
    other = weights[:-4] + b"\x00\x01\x02\x03"
    return model(
        {
            "embed": ("F32", [200, 300], weights),
            "almost": ("F32", [200, 300], other),
            "head": ("F32", [200, 300], weights),
            "bytes": ("U8", [240_000], weights),
            "almost.again": ("F32", [60_000], other),
            "zeros": ("F32", [60_000], bytes(240_000)),
            "nought": ("F32", [60_000], bytes(240_000)),
        }
    )


@pytest.mark.parametrize("jobs", [1, 3])
def test_tensors_that_come_again_are_stored_once(packed: Packer, jobs: int) -> None:
    data = tied()
    report, fd = packed(data, jobs=jobs)
    reader = Reader(fd)
    refs = [(section.ref, section.target) for section in reader.sections]
    none, first = (archive.Ref.NONE, 0), (archive.Ref.XOR, 1)
    assert refs == [none, none, first, first, first, first, none, none]
    assert restored(fd) == data
    assert archive.verify(fd).ok
    assert report.stored < 0.85 * 240_000 + 3_000
    # A range in a tensor that comes again, on its own.
    out = bytearray(1_000)
    Reader(fd).read_into(len(data) - 4 * 240_000 + 100_001, out)
    assert out == data[len(data) - 4 * 240_000 + 100_001 :][:1_000]


def averaged(dtype: str) -> bytes:
    """Weights, others, and a running average of the first: a little beside them, and once exactly so."""
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=120_000) * 0.02).astype("<f4")
    average = (weights * (1 + rng.normal(size=120_000) * 0.002)).astype("<f4")
    kinds: dict[str, Callable[[np.ndarray], bytes]] = {
        "F32": lambda floats: floats.tobytes(),
        "F16": lambda floats: floats.astype("<f2").tobytes(),
        "BF16": lambda floats: (floats.view("<u4") >> 16).astype("<u2").tobytes(),
    }
    stored = kinds[dtype]
    others = (rng.normal(size=120_000) * 0.02).astype("<f4")
    return model(
        {
            "a": (dtype, [300, 400], stored(weights)),
            "b": (dtype, [300, 400], stored(others)),
            "mean.a": (dtype, [300, 400], stored(average)),
            "mean.a.again": (dtype, [300, 400], stored(average)),
        }
    )


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("profile", list(Profile))
def test_tensors_much_like_an_earlier_one_are_stored_as_differences(
    packed: Packer, profile: Profile, dtype: str
) -> None:
    data = averaged(dtype)
    _, fd = packed(data, profile=profile, jobs=2)
    reader = Reader(fd)
    assert [(section.ref, section.target) for section in reader.sections[1:4]] == [
        (archive.Ref.NONE, 0),
        (archive.Ref.NONE, 0),
        (archive.Ref.XOR, 1),
    ]
    assert restored(fd) == data
    assert archive.verify(fd).ok
    sizes = [sum(map(int, reader.describe(section)[2])) for section in reader.sections]
    assert sizes[3] < 0.9 * sizes[1]
    assert contents(fd) == contents(packed(data, profile=profile, jobs=1)[1])


@pytest.mark.parametrize("place", [0, 239_999])
def test_a_tie_that_comes_undone_while_it_is_packed_is_noticed(tmp_path: Path, place: int) -> None:
    source = tmp_path / "source"
    data = tied()
    source.write_bytes(data)
    os.utime(source, (1, 1))

    def meddle(done: int, total: int) -> None:
        with source.open("r+b") as file:
            file.seek(total - 5 * 240_000 + place)
            file.write(b"\xff")

    source_fd, out_fd = os.open(source, os.O_RDONLY), os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(SourceChanged):
            pack(source_fd, out_fd, jobs=1, progress=meddle)
    finally:
        os.close(source_fd)
        os.close(out_fd)


def test_ten_thousand_tiny_tensors_do_not_grow_the_file(packed: Packer) -> None:
    tensors = {f"layer.{i}.scale": ("F32", [1], floats(1, i)) for i in range(10_000)}
    data = model(tensors)
    report, fd = packed(data)
    assert report.sections == 2
    assert report.stored < 0.2 * len(data)
    assert restored(fd) == data


def test_random_bytes_hardly_grow(packed: Packer) -> None:
    data = model({"noise": ("U8", [3_000_000], np.random.default_rng(0).bytes(3_000_000))})
    report, _ = packed(data)
    assert report.stored < len(data) + 1_000


@pytest.mark.parametrize(
    "data",
    [
        model({}),
        model({"empty": ("F32", [0], b"")}),
        model({"scalar": ("F64", [], bytes(8))}),
        b"\x0a" + bytes(7) + b"{}        ",
    ],
    ids=["no tensors", "an empty tensor", "a scalar", "padded header"],
)
def test_files_with_next_to_nothing(packed: Packer, data: bytes) -> None:
    report, fd = packed(data)
    assert restored(fd) == data
    assert report.original == len(data)


@pytest.mark.parametrize("data", [b"", b"hello, world", mixed()[:-1], mixed() + b"x"])
def test_what_is_not_safetensors_is_refused_at_once(packed: Packer, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NotSafetensors):
        packed(data)
    assert (tmp_path / "out0").stat().st_size == 0


def test_progress_ends_at_the_whole(packed: Packer) -> None:
    seen: list[tuple[int, int]] = []
    data = mixed()
    packed(data, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(data), len(data))
    assert sorted(seen) == seen


@pytest.mark.parametrize("change", ["shorter", "longer", "other bytes"])
def test_a_source_that_changes_is_noticed(tmp_path: Path, change: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(model({"w": ("F32", [1_000_000], floats(1_000_000))}))
    os.utime(source, (1, 1))

    def meddle(done: int, total: int) -> None:
        if change == "shorter":
            os.truncate(source, total // 2)
        elif change == "longer":
            with source.open("ab") as file:
                file.write(b"more")
        else:
            with source.open("r+b") as file:
                file.seek(total - 4)
                file.write(b"\xff\xff\xff\xff")

    source_fd, out_fd = os.open(source, os.O_RDONLY), os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(SourceChanged):
            pack(source_fd, out_fd, jobs=2, progress=meddle)
    finally:
        os.close(source_fd)
        os.close(out_fd)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]


def test_programs_in_the_archive_are_those_of_the_plan(packed: Packer) -> None:
    _, fd = packed(mixed())
    reader = Reader(fd)
    texts = [
        dsl.to_text(dsl.from_wire(reader.program(section)[0], section.bits, section.count))
        for section in reader.sections
    ]
    assert texts[0] == "Lit zstd"
    assert texts[2] == "Scan(add, Const 1)"
    assert "Const 0x3f800000" in texts
