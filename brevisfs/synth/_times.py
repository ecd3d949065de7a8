"""What decoding takes, in nanoseconds a word: the one place to change when kernels do.

Measured with `Program.decode` on blocks of 65,664 words of a BF16 model, 8-bit symbols of 2.6 to 4.6
bits, the least of 25 turns on one of two busy cores with AVX2, as what each adds to the words stored
raw, and rounded: two such runs differed by a fifth and more. LISTED and ZSTD_BYTE are older estimates.
What counts is how they stand to each other.
"""

LOOKUP = 0.6
"""One look into a Huffman table, which yields up to five words."""

RANS = 3.0
"""1.2 to 1.9 with AVX2, 7.5 without: something between, for archives are read on other machines too."""

TUNSTALL = 0.35
"""One codeword, whatever it stands for."""

CLASSED, TABLE = 0.04, 0.007
"""Putting segments back in their places, and one more table that has to come into the cache."""

TRANSPOSE = 0.2
SPARSE, LISTED = 0.01, 2.0
"""Every word of a sparse literal, and each one that is listed."""

FIELD, JOINED = 0.18, 0.1
"""A field of a Merge; all fields of one that a single pass puts together (see `_fields.is_joined`)."""

SCAN, MAP, GRAY = 0.9, 0.1, 0.5
"""A word of a Scan, of most Maps, and of Gray's. A rotation is part of what puts fields together."""

SELECT, PALETTE = 0.25, 0.5
"""A word of either, without its mask's or child's own time."""

ZSTD_BYTE = 0.5
"""A byte of a zstd literal."""
