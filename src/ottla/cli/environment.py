"""What options are where nobody gives them: environment variables that stand for them, and defaults."""

from __future__ import annotations

from typing import Final

SERVER_VARIABLE: Final = "OTTLA_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:9092"
MASTER_VARIABLE: Final = "OTTLA_MASTER"
