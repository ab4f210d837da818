"""What the brokers of one machine and the process with their store say to each other. No I/O.

A frame is four bytes of length and one tuple, as `marshal` writes it: numbers, texts and bytes. Both
ends are this program, run by the same user with the same interpreter: the first frame says so, and
the other end refuses anybody else.

    to the store    (number, kind, …)        a request; its answer has the same number
    from the store  (number, answer, …)      OK with the result, or REFUSED with a sentence
                    (NEWS, watch, changes)   changes of nodes below a watched one, in order

Requests are done in the order in which they come, and news of a change are sent before the answer of
any request that sees it.
"""

from __future__ import annotations

import marshal
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

from ottla.cluster.store import (
    Answer,
    Change,
    ChangeKind,
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Ok,
    Operation,
    Refusal,
    Set,
    Unknown,
)
from ottla.version import __version__

LENGTH: Final = struct.Struct(">I")
# The dialect of this module, and what writes it.
DIALECT: Final = ("ottla store 1", __version__, sys.version)

HELLO: Final = 0  # dialect, session timeout in seconds → session id
GET_MANY: Final = 1  # paths → nodes
CHILDREN: Final = 2  # path → names
MULTI: Final = 3  # operations → answer
SYNC: Final = 4
WATCH: Final = 5  # number of the watch, path
UNWATCH: Final = 6  # number of the watch
PING: Final = 7
CLOSE: Final = 8

NEWS: Final = -1
OK: Final = 0
REFUSED: Final = 1

_CREATE, _SET, _DELETE, _CHECK = range(4)
_KINDS: Final = tuple(ChangeKind)
_REFUSALS: Final = tuple(Refusal)


def encode(frame: tuple[Any, ...]) -> bytes:
    """A frame as bytes, its length first."""
    packed = marshal.dumps(frame)
    return LENGTH.pack(len(packed)) + packed


def decode(packed: bytes) -> tuple[Any, ...]:
    """What a frame says, without its length. ValueError if it is none."""
    try:
        frame = marshal.loads(packed)
    except (EOFError, TypeError) as error:
        raise ValueError(str(error)) from error
    if type(frame) is not tuple or len(frame) < 2:
        raise ValueError("not a frame")
    return frame


def pack_operations(operations: Sequence[Operation]) -> list[tuple[Any, ...]]:
    """Operations as plain tuples."""
    packed: list[tuple[Any, ...]] = []
    for operation in operations:
        if isinstance(operation, Create):
            packed.append((_CREATE, operation.path, operation.value, operation.ephemeral))
        elif isinstance(operation, Set):
            packed.append((_SET, operation.path, operation.value, operation.version))
        elif isinstance(operation, Delete):
            packed.append((_DELETE, operation.path, operation.version))
        else:
            packed.append((_CHECK, operation.path, operation.version))
    return packed


def unpack_operations(packed: Sequence[tuple[Any, ...]]) -> list[Operation]:
    """Operations from what `pack_operations` made of them."""
    makers = (Create, Set, Delete, Check)
    return [makers[entry[0]](*entry[1:]) for entry in packed]


def pack_answer(answer: Answer) -> tuple[Any, ...]:
    """The answer to a transaction as a plain tuple."""
    if isinstance(answer, Ok):
        return (0, answer.versions)
    if isinstance(answer, Conflict):
        return (1, answer.operation, _REFUSALS.index(answer.reason))
    return (2, answer.reason)


def unpack_answer(packed: tuple[Any, ...]) -> Answer:
    """An answer from what `pack_answer` made of it."""
    if packed[0] == 0:
        return Ok(packed[1])
    if packed[0] == 1:
        return Conflict(packed[1], _REFUSALS[packed[2]])
    return Unknown(packed[1])


def pack_node(node: Node | None) -> tuple[Any, ...] | None:
    """A node as a plain tuple; None where there is none."""
    return None if node is None else tuple(node)


def unpack_node(packed: tuple[Any, ...] | None) -> Node | None:
    """A node from what `pack_node` made of it."""
    return None if packed is None else Node(*packed)


def pack_change(change: Change) -> tuple[str, int]:
    """A change of a node as a plain tuple."""
    return change.path, _KINDS.index(change.kind)


def unpack_change(packed: tuple[str, int]) -> Change:
    """A change from what `pack_change` made of it."""
    return Change(packed[0], _KINDS[packed[1]])
