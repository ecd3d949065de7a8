"""Telling systemd how the service is doing."""

import os
import socket


def notify(message: str) -> None:
    """Sends one notice if this process was started as a service of type notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notices:
        notices.sendto(message.encode(), address)
