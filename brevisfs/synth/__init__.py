"""Synthesis: which program stores a tensor in the fewest bytes, and the packing of whole files."""

from brevisfs.synth._checkup import FLOATS, SPARSE, Traits, examine
from brevisfs.synth._pack import PackReport, SourceChanged, learn_prior, pack
from brevisfs.synth._plan import Candidate, Plan, synthesize
from brevisfs.synth._prior import BadPrior, Prior, merged
from brevisfs.synth._prior import from_json as prior_from_json
from brevisfs.synth._profile import Profile
from brevisfs.synth._search import ADAPTIVE, Effort, Strategy
from brevisfs.synth._source import Memory, Source

__all__ = [
    "ADAPTIVE",
    "FLOATS",
    "SPARSE",
    "BadPrior",
    "Candidate",
    "Effort",
    "Memory",
    "PackReport",
    "Plan",
    "Prior",
    "Profile",
    "Source",
    "SourceChanged",
    "Strategy",
    "Traits",
    "examine",
    "learn_prior",
    "merged",
    "pack",
    "prior_from_json",
    "synthesize",
]
