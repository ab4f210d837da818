"""Names of principals that mean something by themselves. Imported by every broker: kept small."""

from __future__ import annotations

from typing import Final

# A client that did not prove who it is, on a listener that does not ask.
ANONYMOUS: Final = "User:ANONYMOUS"
