"""Keys and values of control records."""

from __future__ import annotations

from ottla.protocol.message import (
    Int16,
    Int32,
    Message,
)


class ControlRecordTypeSchema(Message, versions=(0, 0)):
    type: Int16 = 0


class EndTxnMarker(Message, versions=(0, 0)):
    coordinator_epoch: Int32 = 0
