"""What decoding takes, in nanoseconds a word: the one place to change when kernels do.

Measured with `Program.decode` on 65,280-word blocks of a BF16 model (8-bit symbols of 2.6 bits, the
least of 25 turns on one AVX2 core at about 3 GHz), as what each adds to the same words stored raw.
What counts is how they stand to each other.
"""

LOOKUP = 1.8
"""One look into a Huffman table, which yields up to five words."""

RANS = 7.5
TUNSTALL_LOOKUP = 0.7
"""One codeword, whatever it stands for."""

CLASSED, TABLE = 0.1, 0.02
"""Putting segments back in their places, and one more table that has to come into the cache."""

TRANSPOSE = 0.85
SPARSE, LISTED = 0.05, 2.0
"""Every word of a sparse literal, and each one that is listed."""

ZSTD_BYTE = 0.5
"""A byte of a zstd literal."""
