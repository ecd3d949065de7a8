"""Makes the golden archives of the current format: `python -m tests.golden.make` in the repository root.

To be run once for each version, whose archives then stay for good. The test beside this script needs only
what it wrote, not the script.
"""

import hashlib
import json
import random
from pathlib import Path

from brevisfs.archive import Kind, Ref
from brevisfs.dsl import parse_text
from tests.archives import Part, assemble, encoded, original, referring
from tests.programs import case_of

FOLDER = Path(__file__).parent / "format1"

Row = tuple[str, int, int, int]
"""Program, bits, words, block."""

ENCODINGS: list[Row] = [
    ("Lit raw", 23, 400, 128),
    ("Lit raw", 64, 70, 64),
    ("Lit raw", 1, 320, 128),
    ("Lit pack(3, base=0x1f0)", 9, 600, 256),
    ("Lit pack(0, base=5)", 4, 200, 64),
    ("Lit huffman(max=11, streams=5)", 8, 700, 320),
    ("Lit huffman(max=15, streams=1)", 5, 600, 576),
    ("Lit huffman(max=8, streams=4, tables=3, segment=48)", 6, 800, 256),
    ("Lit huffman(max=8, streams=4, tables=3, segment=100, rows=4, columns=3)", 6, 800, 256),
    ("Lit huffman(max=4, streams=16)", 1, 320, 64),
    ("Lit rans(lanes=4, prob=12)", 8, 600, 256),
    ("Lit rans(lanes=32, prob=8, tables=2, segment=100)", 3, 800, 512),
    ("Lit rans(lanes=64, prob=14, tables=3, segment=64)", 5, 1200, 640),
    ("Lit rans(lanes=8, prob=12, tables=5, segment=64, rows=2, columns=16)", 8, 1200, 640),
    ("Lit rans(lanes=3, prob=10)", 9, 512, 320),
    ("Lit zstd", 32, 200, 128),
    ("Lit zstd", 12, 200, 128),
    ("Lit tunstall(bits=9, prob=12)", 8, 900, 512),
    ("Lit tunstall(bits=8, prob=10, tables=2, segment=64)", 5, 800, 512),
    ("Lit tunstall(bits=8, prob=10, tables=3, segment=50, rows=1, columns=3)", 5, 800, 512),
    ("Lit sparse(base=0x3f80)", 16, 300, 128),
    ("Lit sparse(base=1)", 1, 800, 320),
]

OPERATORS: list[Row] = [
    ("Const 0x3f80", 16, 300, 128),
    ("Const 1", 1, 64, 64),
    ("Concat(100: Const 0, 3: Lit raw, 297: Lit pack(2, base=7))", 11, 400, 64),
    ("Repeat(5, Lit huffman(max=9, streams=2))", 8, 500, 128),
    ("Repeat(3, Repeat(2, Merge(4: Lit raw, 4: Lit rans(lanes=2, prob=9))))", 8, 480, 64),
    ("Map(xor 0xff, Lit raw)", 8, 100, 64),
    ("Map(add 77, Lit pack(4, base=0))", 7, 104, 64),
    ("Map(zigzag, Lit pack(5, base=0))", 16, 100, 64),
    ("Map(gray, Lit raw)", 13, 104, 64),
    ("Map(bitrev, Lit raw)", 32, 70, 64),
    ("Map(rotr 1, Merge(8: Lit huffman(max=11, streams=5), 8: Lit raw))", 16, 500, 256),
    ("Scan(add, Const 1)", 64, 200, 64),
    ("Transpose(20, Lit huffman(max=10, streams=2, tables=3, segment=16))", 8, 700, 320),
    ("Map(xor 3, Transpose(7, Lit raw))", 12, 100, 64),
    ("Scan(xor, Lit sparse(base=0))", 32, 200, 128),
    ("Palette(0, 3, 0x3c00, 0xbc00: Lit huffman(max=3, streams=2))", 16, 500, 192),
    ("Palette(1, 70, 71, 0x1ff, 0x200: Map(xor 1, Lit pack(2, base=0)))", 10, 200, 128),
    ("Select(0, Lit rans(lanes=2, prob=12), Lit raw)", 32, 400, 192),
    ("Select(0x3f80, Lit sparse(base=0), Scan(add, Lit pack(3, base=1)))", 16, 300, 128),
    ("Select(9, Lit raw, Concat(100: Lit pack(3, base=0), 300: Const 3))", 4, 400, 128),
    ("Scan(add, Map(zigzag, Lit huffman(max=12, streams=3)))", 10, 320, 192),
    ("Merge(1: Lit raw, 10: Lit huffman(max=12, streams=4), 5: Lit raw)", 16, 300, 128),
    ("Merge(1: Const 0, 1: Lit sparse(base=0), 1: Lit raw, 1: Lit zstd)", 4, 300, 128),
    (
        "Map(rotr 3, Scan(add, Concat(150: Merge(4: Lit raw, 2: Const 1), 49: Map(gray, Lit raw))))",
        6,
        200,
        64,
    ),
]


def random_parts(rows: list[Row]) -> list[Part]:
    """A section of each program on a random stream."""
    rng = random.Random(0)
    parts = []
    for text, bits, count, block in rows:
        case = case_of(rng, parse_text(text), bits, count, block)
        coded = (case.wire, case.shared, case.payloads, case.flat)
        parts.append(Part(Kind.TENSOR, None, bits, count, block, *coded))
    return parts


def references() -> list[Part]:
    """Sections that refer to others: the same bytes, a few bits flipped, words a little larger."""
    rng = random.Random(0)
    first = rng.randbytes(700)
    parts = [encoded("Lit raw", 7, first, 128), encoded("Lit raw", 16, first, 128)]
    flipped = bytearray(first)
    for _ in range(5):
        flipped[rng.randrange(700)] ^= 1 << rng.randrange(8)
    larger = [int.from_bytes(first[i : i + 2], "little") + rng.randrange(8) for i in range(0, 700, 2)]
    added = b"".join((word % 65536).to_bytes(2, "little") for word in larger)
    parts.append(referring("Const 0", first, Ref.XOR, 1, parts))
    parts.append(referring("Lit sparse(base=0)", bytes(flipped), Ref.XOR, 0, parts))
    parts.append(referring("Lit pack(3, base=0)", added, Ref.ADD, 1, parts))
    return parts


def model() -> list[Part]:
    """A whole safetensors file, with every kind of section."""
    rng = random.Random(0)
    weight = b"".join(
        (rng.getrandbits(8) << 7 | min(int(rng.expovariate(0.5)), 30) + 100 >> 1).to_bytes(2, "little")
        for _ in range(600)
    )
    small, ids = rng.randbytes(24), b"".join(i.to_bytes(8, "little") for i in range(100))
    unknown = rng.randbytes(7)
    entries, begin = {}, 0
    for name, dtype, shape, data in [
        ("weight", "BF16", [20, 30], weight),
        ("bias", "F32", [4], small[:16]),
        ("scale", "F16", [4], small[16:]),
        ("empty", "F32", [0, 3], b""),
        ("ids", "I64", [100], ids),
        ("new", "F5_NEW", [11], unknown),
    ]:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header = (len(text) + 3).to_bytes(8, "little") + text + b"   "
    fields = "Merge(1: Lit raw, 8: Lit huffman(max=11, streams=5), 7: Lit raw)"
    return [
        encoded("Lit zstd", 8, header, 4096, Kind.HEADER),
        encoded(fields, 16, weight, 256, Kind.TENSOR, "BF16"),
        encoded("Lit raw", 8, small, 64, Kind.GROUP),
        encoded("Scan(add, Const 1)", 64, ids, 64, Kind.TENSOR, "I64"),
        encoded("Lit raw", 8, unknown, 64, Kind.BYTES),
    ]


def main() -> None:
    """Write the archives and the digests of what they hold."""
    archives = {
        "encodings": random_parts(ENCODINGS),
        "operators": random_parts(OPERATORS),
        "references": references(),
        "model.safetensors": model(),
        "empty": [],
    }
    FOLDER.mkdir(exist_ok=True)
    lines = []
    for name, parts in archives.items():
        data = assemble(parts)
        (FOLDER / f"{name}.brv").write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {name}.brv\n")
        lines.append(f"{hashlib.sha256(original(parts)).hexdigest()}  {name}\n")
    (FOLDER / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
