"""How many bytes went over a connection, as the operating system counts them."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

# struct tcp_info of Linux: tcpi_bytes_acked and tcpi_bytes_received (since 4.1).
_COUNTS: Final = struct.Struct("=QQ")
_COUNTS_AT: Final = 120


def bytes_sent_and_received(sock: socket.socket) -> tuple[int, int]:
    """What the peer has acknowledged, and what came from it, headers of TCP left out and what TLS adds
    included; -1 where nobody counts."""
    if sys.platform != "linux":
        return -1, -1
    size = _COUNTS_AT + _COUNTS.size
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return -1, -1
    if len(info) < size:
        return -1, -1
    sent, received = _COUNTS.unpack_from(info, _COUNTS_AT)
    return sent, received
