"""How a command ends when it cannot go on: what is told, and the exit code."""

from __future__ import annotations

import os
import sys

from ottla.cli.failures import FAILED, Failure, Misuse
from ottla.cli.output import note


def tell(message: str, code: int) -> int:
    """Print why a command ends, and give its exit code."""
    try:
        note(f"ottla: {message}")
    except BrokenPipeError:
        return code or FAILED
    return code


def discard_output() -> None:
    """Discard what is still buffered for standard output, whose reader is gone (`| head`): the
    interpreter would complain when it flushes at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # not a real file, as in tests


def of_system(problem: OSError) -> Failure:
    """An error of the system as a sentence for users."""
    where = f"{problem.filename}: " if problem.filename else ""
    return Failure(f"{where}{problem.strerror or problem}")


def of_unsendable(problem: ValueError) -> Failure | None:
    """What fits into no request as a sentence for users; None for other errors."""
    import struct

    from ottla.protocol.message import UnencodableMessage

    if not isinstance(problem, UnencodableMessage):
        return None
    match problem.__cause__:
        case struct.error():
            what = "a number is larger than any that brokers take"
        case UnicodeError():
            what = "a name or a value is not UTF-8"
        case None:
            what = f"{problem} is too long"
        case _:
            return None
    return Misuse(f"this cannot be asked of a broker: {what}")
