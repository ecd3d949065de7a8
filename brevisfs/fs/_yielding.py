"""When workers give way to those who use the mount."""

# A mount is busy that takes a tenth of a processor.
_BUSY = 0.1
# Seconds for which it counts as busy after: a reader who pauses for less goes on.
_AFTER = 0.05
# As long as it is busy, workers stand still for so many seconds, and then go on for so many, again and again.
_STILL, _GOING = 0.3, 0.1


class Yielding:
    """Whether workers stand still, told from looks at how much time of processors the mount takes.

    A reader of an archive keeps two processors busy, and a worker that takes what is left of them slows it
    down by a fifth, whatever its priority. All times are in seconds.
    """

    def __init__(self, now: float, taken: float) -> None:
        self._looked, self._taken = now, taken
        self._busy_since: float | None = None
        self._busy_until = now

    def look(self, now: float, taken: float) -> bool:
        """Whether to stand still from `now` on; the mount has taken `taken` of processors so far."""
        if taken - self._taken > _BUSY * (now - self._looked):
            self._busy_until = now + _AFTER
        self._looked, self._taken = now, taken
        if now >= self._busy_until:
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
        return (now - self._busy_since) % (_STILL + _GOING) < _STILL
