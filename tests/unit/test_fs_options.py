"""What can be chosen about a mount, and what cannot."""

import time

import pytest

from brevisfs.fs import BadOption, MountOptions, RecompressionOptions


def at(hour: int, minute: int) -> time.struct_time:
    return time.struct_time((2030, 1, 1, hour, minute, 0, 0, 1, 0))


def test_quiet_hours() -> None:
    by_day = RecompressionOptions(quiet_hours="08:00-18:30")
    assert [by_day.is_quiet(at(*now)) for now in ((7, 59), (8, 0), (18, 29), (18, 30))] == [
        *(False, True, True, False)
    ]
    by_night = RecompressionOptions(quiet_hours="22:15-6:00")
    assert [by_night.is_quiet(at(*now)) for now in ((22, 14), (22, 15), (0, 0), (5, 59), (6, 0))] == [
        *(False, True, True, True, False)
    ]
    assert not RecompressionOptions().is_quiet(at(12, 0))


@pytest.mark.parametrize("hours", ["", "8-18", "08:00", "24:00-07:00", "08:60-09:00", "08:00-09:00 "])
def test_no_hours(hours: str) -> None:
    with pytest.raises(BadOption, match="08:00-18:30"):
        RecompressionOptions(quiet_hours=hours)


def test_out_of_range() -> None:
    with pytest.raises(BadOption):
        RecompressionOptions(settle=-1)
    with pytest.raises(BadOption):
        RecompressionOptions(workers=0)
    with pytest.raises(BadOption):
        MountOptions(threads=0)
    with pytest.raises(BadOption):
        MountOptions(cache_size=1)
