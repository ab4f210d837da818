"""More logs are written to at once than may have open files."""

from __future__ import annotations

import threading
from collections.abc import Callable

from server_kit.broker_thread import BrokerThread
from server_kit.calls import batch_of, create_topic, produce

from ottla.server.broker import Broker
from ottla.storage.files import Files

LIMIT = 8
PARTITIONS = 40


class Watched(Files):
    """Notes whether the loop has waited for a sync."""

    loop_thread: int
    synced_by: list[bool]

    def fsync(self, fd: int) -> None:
        self.synced_by.append(threading.get_ident() == self.loop_thread)
        super().fsync(fd)


def test_the_loop_syncs_no_file_to_make_room_for_another(
    start_broker: Callable[..., BrokerThread],
) -> None:
    thread = start_broker()
    synced_by: list[bool] = []

    def restrict(broker: Broker) -> None:
        loop_thread = threading.get_ident()
        open_files = broker.logs.open_files
        open_files.limit = LIMIT
        files = Watched()
        files.loop_thread, files.synced_by = loop_thread, synced_by
        open_files.files = files

    with thread.wire() as wire:
        topic = create_topic(wire, PARTITIONS)
        thread.run(restrict)
        for round_ in range(3):
            for index in range(PARTITIONS):
                answer = produce(wire, topic, batch_of(b"x"), index=index)
                assert (answer.error_code, answer.base_offset) == (0, round_)
        most = thread.run(lambda broker: len(broker.logs.open_files))
    assert synced_by, "there was room for all of them"
    assert not any(synced_by), "the loop waited for a disk"
    assert most < PARTITIONS
