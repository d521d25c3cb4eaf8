"""Reports the service's state to systemd (sd_notify) without a library: one datagram to the socket in NOTIFY_SOCKET.

Does nothing if NOTIFY_SOCKET is not in the environment. See systemd's sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends `state`; ignores errors, since a supervisor that does not listen is no reason to stop."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.connect(address)
            sender.sendall(state.encode())
        except OSError:
            return
