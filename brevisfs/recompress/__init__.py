"""Packing files in place: in workers, which neither hold up nor endanger who wants it, or offline.

`start` needs trio, and `worker`, `offline` and `estimate` the search: nobody loads what he does not use.
"""

from brevisfs.recompress._check import NoRoom, check_room, looks_like_model, same_as, too_little
from brevisfs.recompress._pace import Pace

__all__ = ["NoRoom", "Pace", "check_room", "looks_like_model", "same_as", "too_little"]
