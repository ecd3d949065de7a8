"""Packing files in place: in workers, which neither hold up nor endanger who wants it, or offline."""

from brevisfs.recompress._check import NoRoom, check_room, looks_like_model, same_as, too_little
from brevisfs.recompress._worker import Outcome, Pace, Packed, Refused, WorkerFailed, pack_in_worker

__all__ = [
    "NoRoom",
    "Outcome",
    "Pace",
    "Packed",
    "Refused",
    "WorkerFailed",
    "check_room",
    "looks_like_model",
    "pack_in_worker",
    "same_as",
    "too_little",
]
