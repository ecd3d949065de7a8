"""Archives of every format version, as they were written, still decode to the same bytes."""

import hashlib
import random
from pathlib import Path

import pytest

from brevisfs import safetensors
from brevisfs.archive import Kind, Reader, Ref, Section, original_length, verify
from brevisfs.dsl import Huffman, Lit, Map, Node, Rans, Scan, Sparse, Tunstall, Zstd, from_wire, walk
from brevisfs.dsl.reference import build_shared, decode_block, encode_block, flatten, unflatten
from tests.archives import opened_path, program_bytes, read

FOLDER = Path(__file__).parent
ARCHIVES = sorted(FOLDER.glob("format*/*.brv"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in ARCHIVES]


def sums(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def payloads(data: bytes, reader: Reader, section: Section) -> list[bytes]:
    at = section.record + section.prologue
    found = []
    for length in map(int, reader.describe(section)[2]):
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def programs(path: Path) -> list[tuple[Section, Node]]:
    with opened_path(path) as fd:
        reader = Reader(fd)
        return [(s, from_wire(reader.program(s)[0], s.bits, s.count)) for s in reader.sections]


def test_the_archives_are_there() -> None:
    for folder in FOLDER.glob("format*"):
        names = {path.name for path in folder.glob("*.brv")}
        assert names
        assert set(sums(folder)) == names | {name.removesuffix(".brv") for name in names}


@pytest.mark.parametrize("path", ARCHIVES, ids=NAMES)
def test_an_archive_decodes_to_what_it_was_made_from(path: Path) -> None:
    expected = sums(path.parent)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected[path.name]
    with opened_path(path) as fd:
        reader = Reader(fd)
        whole = read(reader, 0, reader.size)
        assert hashlib.sha256(whole).hexdigest() == expected[path.stem] == reader.sha256.hex()
        assert verify(fd).ok
        assert original_length(fd) == len(whole)
        rng = random.Random(path.name)
        for _ in range(200):
            begin, end = sorted(rng.choices(range(len(whole) + 1), k=2))
            assert read(reader, begin, end) == whole[begin:end]


@pytest.mark.parametrize("path", ARCHIVES, ids=NAMES)
def test_the_reference_reads_and_writes_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    with opened_path(path) as fd:
        reader = Reader(fd)
        for section in reader.sections:
            wire, shared, _ = reader.describe(section)
            node = from_wire(wire, section.bits, section.count)
            flat = program_bytes(reader, section)
            words = unflatten(flat, section.bits)
            stored = payloads(data, reader, section)
            form = (node, section.bits, section.count, section.block)
            decoded = [decode_block(*form, index, shared, each) for index, each in enumerate(stored)]
            assert flatten([word for block in decoded for word in block], section.bits) == flat
            if any(node.encoding == Zstd() for _, _, node, *_ in walk(*form[:3]) if isinstance(node, Lit)):
                continue  # its frames depend on the version of the zstd library
            assert build_shared(*form, words) == shared
            cut = range(0, section.count, section.block)
            blocks = [words[at : at + section.block] for at in cut]
            assert [encode_block(*form, i, shared, each) for i, each in enumerate(blocks)] == stored


def test_format_1_covers_the_language() -> None:
    seen: set[object] = set()
    for path in FOLDER.glob("format1/*.brv"):
        for section, program in programs(path):
            seen |= {section.kind, section.ref}
            for _, depth, node, bits, _ in walk(program, section.bits, section.count):
                seen |= {type(node), ("depth", depth)}
                match node:
                    case Lit(Huffman() | Rans() | Tunstall() as encoding):
                        seen.add((type(encoding), "columns" if encoding.columns else encoding.tables > 1))
                    case Lit(Sparse()):
                        seen.add(("sparse bits", bits == 1))
                    case Lit(encoding):
                        seen.add(type(encoding))
                    case Map(function):
                        seen.add(type(function))
                    case Scan(kind):
                        seen.add(kind)
    names = {each.__name__ for each in seen if isinstance(each, type)}
    assert names == {
        *("Lit", "Const", "Concat", "Repeat", "Map", "Scan", "Merge"),
        *("Palette", "Select", "Transpose"),
        *("Raw", "Pack", "Zstd"),
        *("Xor", "Add", "ZigZag", "Gray", "BitReverse", "RotR"),
    }
    assert seen >= {*Kind, *Ref, "xor", "add", ("sparse bits", True), ("sparse bits", False)}
    assert seen >= {(coded, many) for coded in (Huffman, Rans, Tunstall) for many in (False, True, "columns")}
    assert ("depth", 4) in seen


def test_the_model_is_a_safetensors_file() -> None:
    path = FOLDER / "format1" / "model.safetensors.brv"
    with opened_path(path) as fd:
        reader = Reader(fd)
        layout = safetensors.parse(reader.size, lambda offset, length: read(reader, offset, offset + length))
        assert [tensor.name for tensor in layout.tensors][-2:] == ["ids", "new"]
        assert [section.dtype for section in reader.sections] == [None, "BF16", None, "I64", None]
