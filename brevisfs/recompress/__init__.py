"""Packing a file in a process of its own, which neither holds up nor endangers whoever wants it packed."""

from brevisfs.recompress._check import looks_like_model, same_as
from brevisfs.recompress._worker import Outcome, Packed, Refused, WorkerFailed, pack_in_worker

__all__ = ["Outcome", "Packed", "Refused", "WorkerFailed", "looks_like_model", "pack_in_worker", "same_as"]
