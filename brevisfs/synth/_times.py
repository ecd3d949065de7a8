"""What decoding takes, in nanoseconds a word: the one place to change when kernels do.

Measured with `Program.decode` on blocks of 65,536 words of a BF16 model and of the same bytes as words
of 32 bits, with the kernels for AVX-512, as what each adds to the words stored raw, and rounded. Select,
Palette, LISTED and ZSTD_BYTE are older estimates.
What counts is how they stand to each other.
"""

LOOKUP = 0.85
"""One look into a Huffman table, which yields up to five words."""

RANS, RANS_FEW = 1.5, 0.22
"""With tables of any number of symbols, and of at most 64. The former takes 0.5 with AVX-512, 1.4 with AVX2,
2 to 3 without; the latter are looked up in registers with AVX-512, and take 0.2 in runs of blocks, 0.25
in a block alone, elsewhere as the former (so they count in a `portable` profile)."""

TUNSTALL = 0.35
"""One codeword, whatever it stands for."""

CLASSED, TABLE = 0.04, 0.007
"""Putting segments back in their places, and one more table that has to come into the cache."""

PAIRED = 0.12
"""Putting the words of a row back in their places."""

TRANSPOSE = 0.07
SPARSE, LISTED = 0.01, 2.0
"""Every word of a sparse literal, and each one that is listed."""

FIELD, JOINED = 0.1, 0.11
"""A field of a Merge, for each byte that a word takes in an array; all fields of one that a single pass puts
together (see `_fields.is_joined`)."""

SCAN, MAP, GRAY = 0.9, 0.1, 0.5
"""A word of a Scan, of most Maps, and of Gray's. A rotation is part of what puts fields together."""

SELECT, PALETTE = 0.25, 0.5
"""A word of either, without its mask's or child's own time."""

ZSTD_BYTE = 0.5
"""A byte of a zstd literal."""
