"""Whether a broker can be reached where it says that it can.

Clients, and other brokers, are sent to the advertised addresses and to no others: if those are wrong a
client connects, learns of them, and hangs. Only a warning, for a broker need not be able to reach itself
by an address that others reach it by.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ottla.cluster.metadata import Endpoint

log = logging.getLogger("ottla.broker")

PATIENCE_SECONDS: Final = 5.0


async def warn_of_unreachable(endpoints: Iterable[Endpoint]) -> None:
    """Connects to each address once; a warning for each where nobody takes the connection."""
    for endpoint in endpoints:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or "no answer"
            log.warning(
                "the advertised address of %s, %s:%d, cannot be reached from here (%s): clients and "
                "other brokers are sent there. Correct advertised.listeners if they cannot, either",
                endpoint.listener, endpoint.host, endpoint.port, why,
            )  # fmt: skip
        else:
            writer.close()
