"""Learning the prior of a checkpoint: what is found for a few of its tensors orders the search for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brevisfs.archive import Kind
from brevisfs.synth._plan import look_up, word_bits
from brevisfs.synth._prior import Prior, counted, merged
from brevisfs.synth._profile import Profile
from brevisfs.synth._sample import spread
from brevisfs.synth._search import Strategy
from brevisfs.synth._sections import Cut
from brevisfs.synth._source import Source

TENSORS = 4
EXPANSIONS = 6
WORDS = 1 << 20
"""Words looked at in all of the tensors together."""


class _Beginning:
    """The first bytes of a source."""

    def __init__(self, source: Source, nbytes: int) -> None:
        self.nbytes = nbytes
        self.read = source.read


def learn(cuts: Sequence[Cut], source: Callable[[Cut], Source], profile: Profile) -> Prior:
    """The prior of a file cut into sections, each of which `source` gives the bytes of.

    Learnt from up to TENSORS of them, of different dtypes and sizes. Raises what reading raises.
    """
    ranked = sorted(
        (cut for cut in cuts if cut.kind != Kind.HEADER),
        key=lambda cut: (cut.dtype or "", cut.nbytes, cut.offset),
    )
    priors = []
    for at in spread(len(ranked), TENSORS):
        cut = ranked[at]
        bits = word_bits(cut.dtype, cut.nbytes)
        nbytes = min(cut.nbytes, WORDS // TENSORS * bits // 8)
        # What is left of a tensor has its rows, but no longer its shape.
        beginning = _Beginning(source(cut), nbytes)
        found = look_up(beginning, cut.dtype, (), profile, cut.block, Strategy(EXPANSIONS), Prior)
        priors.append(counted(found.used()))
    return merged(priors)
