"""When workers stand still."""

from collections.abc import Callable

import numpy as np

from brevisfs.fs._yielding import Yielding


def looks(share: Callable[[float], float], seconds: float) -> list[bool]:
    """What a hundred looks a second tell, if the mount takes `share(now)` of a processor."""
    yielding, taken = Yielding(0, 0), 0.0
    told = []
    for now in np.arange(1, round(100 * seconds) + 1) / 100:
        taken += share(now) / 100
        told.append(yielding.look(now, taken))
    return told


def test_nobody_stands_still_beside_a_mount_that_does_little() -> None:
    assert not any(looks(lambda now: 0.05, 10))


def test_stands_still_from_the_first_look_to_the_end_of_reading() -> None:
    told = looks(lambda now: 1.5 if 1 < now <= 1.2 else 0, 2)
    assert not any(told[:100])
    assert all(told[100:120])
    assert not any(told[130:])


def test_short_pauses_of_a_reader_change_nothing() -> None:
    told = looks(lambda now: 1.5 if round(now * 100) % 4 == 0 else 0, 0.3)
    assert all(told[3:30])


def test_goes_on_at_times_beside_a_reader_who_does_not_end() -> None:
    told = looks(lambda now: 1.5, 100)
    assert 0.2 < told.count(False) / len(told) < 0.3
    assert all(told[:29]), "reading that ends soon is not held up"
