"""A leader stands still for longer than its session lives, and then goes on where it was."""

from __future__ import annotations

import signal

import pytest
from cluster_kit.history import Outcome, Write
from cluster_kit.scene import Scene, expect_no_anomaly
from confluent_kafka import Producer


@pytest.mark.long
@pytest.mark.parametrize("acks", ["1", "all"])
def test_a_leader_deposed_in_its_sleep_acknowledges_nothing(scene: Scene, acks: str) -> None:
    """Requests wait in its socket while another becomes leader. It reads them when it wakes, and
    whatever is acknowledged then, by whomever, is in the log of the new leader."""
    with scene.workload(producers=1) as workload:
        sent: list[Write] = []
        for partition in range(2):
            scene.wait_until_in_sync()
            leader = scene.leader(partition)
            name = f"sleepless-{partition}"
            producer = Producer(
                {
                    "bootstrap.servers": scene.bootstrap,
                    "acks": acks,
                    "linger.ms": 0,
                    "socket.timeout.ms": 60_000,
                    "message.timeout.ms": 60_000,
                    "topic.metadata.refresh.interval.ms": -1,
                    "retries": 0,  # what the sleeper answers is what counts
                    "log_level": 0,
                }
            )
            # There is a connection, and then there are requests in it that nobody reads for a while.
            workload.write(producer, Write(name, partition, 0, durable=False))
            assert producer.flush(30) == 0
            scene.signal(leader, signal.SIGSTOP)
            for number in range(1, 6):
                write = Write(name, partition, number)
                sent.append(write)
                workload.write(producer, write)
                producer.poll(0.05)
            scene.leader(partition, other_than=leader, ask=scene.others(leader))
            workload.wait_for_progress()
            assert all(write.outcome is Outcome.UNKNOWN for write in sent[-5:])
            scene.signal(leader, signal.SIGCONT)
            assert producer.flush(90) == 0
            workload.wait_for_progress()
            scene.wait_until_in_sync()
    expect_no_anomaly(workload)
    print([write.error or write.offset for write in sent])
