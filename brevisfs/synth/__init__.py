"""Synthesis: which program stores a tensor in the fewest bytes, and the packing of whole files."""

from brevisfs.synth._pack import PackReport, SourceChanged, pack
from brevisfs.synth._plan import Candidate, Plan, synthesize
from brevisfs.synth._profile import Profile
from brevisfs.synth._source import Memory, Source

__all__ = [
    "Candidate",
    "Memory",
    "PackReport",
    "Plan",
    "Profile",
    "Source",
    "SourceChanged",
    "pack",
    "synthesize",
]
