"""How a command ends badly: one sentence for the user and an exit code, never a traceback."""

from __future__ import annotations

FAILED = 1
MISUSED = 2
INTERRUPTED = 130  # what a shell reports for a process that SIGINT ended
PIPE_CLOSED = 141  # what a shell reports for a process that SIGPIPE ended
HEADER_NOT_UTF_8 = "a header's name is not UTF-8, and no name can be anything else"


class Failure(Exception):
    """The command was understood and could not be done; the message says what to do about it."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Misuse(Failure):
    """The command line itself is wrong; nothing was tried."""

    exit_code = MISUSED
