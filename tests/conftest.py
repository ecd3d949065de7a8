"""What holds for all tests."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background job ignores interrupts, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
