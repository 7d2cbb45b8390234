"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 15_000, 29_999
"""Below the ports that Linux gives to outgoing connections (``ip_local_port_range``, from 32768) and those of
Kubernetes' services (from 30000): between the answer and the server's start nobody else is given the port."""

_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens, another one at each call in this process."""
    draw = random.SystemRandom()  # a test may have seeded the other one, in each process alike
    while True:
        port = draw.randint(_FIRST, _LAST)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
