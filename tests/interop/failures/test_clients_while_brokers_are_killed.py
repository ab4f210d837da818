"""The scenarios of ../test_clients.py on a cluster whose brokers are killed (-9), one after another.

All the while a broker is killed, stays away for a moment, comes back, and when everything is in sync
the next one is killed. Topics have three replicas, and clients write idempotently where they can: they
have to get through by their own retries, with nothing lost, doubled or out of order. Where a scenario
looks at what is stored, it looks into the folders of all three brokers, which hold the same bytes. What
only a single broker could promise (acks=0 and 1) is left out. Groups and transactions under the same are
in test_exactly_once_in_a_cluster.py.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import pytest
import test_clients as scenarios
from confluent_kafka import KafkaError, KafkaException
from interop_kit.clients.client import EARLIEST, READ_TIMEOUT, A, Client, Start
from interop_kit.clients.driver import DriverError
from interop_kit.clients.python_clients import AWAY, ConfluentClient
from interop_kit.clients.registry import CLIENTS
from interop_kit.records import Record
from interop_kit.running_cluster import BROKERS, RunningCluster, running_cluster

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("killed-brokers")]

AWAY_SECONDS = 1.0
BETWEEN_SECONDS = 0.5

SCENARIOS: list[Callable[..., None]] = [
    scenarios.test_topic_is_created_by_writing_to_it,
    scenarios.test_write_every_kind_of_record,
    scenarios.test_read_every_kind_of_record,
    scenarios.test_read_from_an_offset,
    scenarios.test_read_from_the_middle_of_a_batch,
    scenarios.test_read_from_a_time,
    scenarios.test_offsets_and_times,
    scenarios.test_partitions_keep_their_order,
    scenarios.test_acknowledgements,
    scenarios.test_idempotent_producer,
    scenarios.test_many_records_over_many_fetches,
    scenarios.test_waiting_reader_gets_what_is_written,
]
LEFT_OUT: dict[Callable[..., None], str] = {
    scenarios.test_create_and_delete_topic: (
        "the clients' drivers make topics of one replica, which is away with its broker: that all its "
        "partitions have leaders is no promise of a cluster. Topics are made and deleted while "
        "brokers are away in tests/cluster/faults/test_odd_faults.py"
    ),
}
# What a scenario asks of its client beyond writing and reading.
NEEDS = {
    scenarios.test_idempotent_producer: A.IDEMPOTENCE,
    scenarios.test_read_from_a_time: A.TIME,
    scenarios.test_offsets_and_times: A.TIME,
}
# Clients whose drivers do not read through a failover, and why.
NO_READERS = {
    "kafkajs": "reads as a member of a group, and some records again after a failover",
    "platformatic": "is asked for single fetches, always of the leader that it found first",
}

# Clients on librdkafka, and kafkajs. Their calls for offsets hand on what a broker answers that does not
# lead any more, or that its connection broke; they look for the leader then, and leave it to the program
# to ask again.
ASK_ONCE = {"confluent-kafka", "kcat", "php", "kafkajs"}
MOVED = (
    "Not leader",
    "not the leader",
    "Leader not available",
    "Unknown partition",  # a topic of which a broker that has just come back has not heard yet
    "Unknown topic or partition",  # the same: kcat asks once what there is, and ends
    "Failed to query metadata",  # kcat's broker died while it asked
    "Leader epoch",
    "leader epoch",
    "Broker transport failure",
    "Connection error",
    "Broker handle destroyed",  # librdkafka has heard that the broker it asked is gone
    "connect: connection refused",  # of the leader that sarama asks where a partition begins and ends
)
# Those that hand such an error on also when they begin to read. They are started anew then, and have to
# read all of it.
READ_AGAIN = {"kcat", "sarama"}
ASK_AGAIN_SECONDS = 0.1

T = TypeVar("T")


class Killer:
    """Kills the brokers in turn, from a thread of its own."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.kills = 0
        self.bootstrap = cluster.bootstrap
        self.stored_batches = cluster.stored_batches
        self.problem: BaseException | None = None
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for broker in cycle(range(1, BROKERS + 1)):
                with self._cluster.without(broker):
                    self.kills += 1
                    self._stop.wait(AWAY_SECONDS)
                if self._stop.wait(BETWEEN_SECONDS):
                    break
        except BaseException as error:
            self.problem = error
            raise


class Idempotent(Client):
    """A client that writes idempotently if it can. It does not create topics: the others would give
    them one replica."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.name = client.name
        self.codecs = client.codecs
        self.abilities = client.abilities - {A.CREATE}
        self.unreadable = client.unreadable
        self._asks_once = client.name in ASK_ONCE

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        offsets = self._client.produce(
            topic, records, codec, acks=acks, idempotent=self.can(A.IDEMPOTENCE)
        )
        # Who repeats a batch that is stored already may be told so without its offset.
        return [-1] * len(records) if -1 in offsets else offsets

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        if start.time is not None and self._asks_once:
            # As the client would do it.
            offset = self.offset_for_time(topic, partition, start.time)
            assert offset is not None
            start = Start(offset=offset)
        if self.name in READ_AGAIN:
            return self._asked(lambda: self._client.consume(topic, partition, count, start))
        return self._client.consume(topic, partition, count, start)

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        return self._asked(lambda: self._client.offsets(topic, partition))

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        return self._asked(lambda: self._client.offset_for_time(topic, partition, timestamp))

    def _asked(self, ask: Callable[[], T]) -> T:
        """Asks again, as a program has to, where the client does not."""
        deadline = time.monotonic() + READ_TIMEOUT
        while True:
            try:
                return ask()
            except (KafkaException, DriverError, AssertionError) as error:
                told = str(error)
                if isinstance(error, DriverError):
                    told = told.partition("\n")[0]  # what it logged before comes after that
                asks_again = self._asks_once or self.name in READ_AGAIN
                passing = asks_again and any(each in told for each in MOVED)
                if not passing or time.monotonic() > deadline:
                    raise
                time.sleep(ASK_AGAIN_SECONDS)


class Reference(ConfluentClient):
    """The client with which the tests look at what another one did."""

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._settings())
        new = NewTopic(topic, partitions, BROKERS, config=dict(config or {}))
        deadline = time.monotonic() + READ_TIMEOUT
        while True:
            try:
                admin.create_topics([new], operation_timeout=30)[topic].result(60)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # by a request of before, whose answer was lost
                # What a request came to whose broker died is for the program to find out.
                if code not in AWAY or time.monotonic() > deadline:
                    raise

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        return super().produce(topic, records, codec, acks=acks, idempotent=True)


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    folder = tmp_path_factory.mktemp("killed") / "cluster"
    with running_cluster(folder, group_initial_rebalance_delay_ms="0") as cluster:
        # The topics of the coordinators are there before the first is killed.
        warm = Reference(cluster.bootstrap)
        warm.create_topic("warm")
        warm.produce("warm", [Record(key=b"k", value=b"v")])
        with Killer(cluster) as running:
            yield running


@pytest.fixture(scope="module")
def make(
    killer: Killer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Client]]:
    logs: Path = tmp_path_factory.mktemp("clients")
    known: dict[str, Client] = {}

    def make(name: str) -> Client:
        if name not in known:
            known[name] = CLIENTS[name].client(killer.bootstrap, logs)
        return Idempotent(known[name])

    yield make
    for client in known.values():
        client.close()


def test_every_scenario_is_here_or_left_out_for_a_reason() -> None:
    every = {each for name, each in vars(scenarios).items() if name.startswith("test_")}
    assert every == {*SCENARIOS, *LEFT_OUT}
    assert not LEFT_OUT.keys() & set(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__[5:])
@pytest.mark.parametrize("name", CLIENTS)
def test_scenario(
    name: str,
    scenario: Callable[..., None],
    killer: Killer,
    make: Callable[[str], Client],
    topic: str,
) -> None:
    client = make(name)
    if scenario in NEEDS and not client.can(NEEDS[scenario]):
        pytest.skip(f"{name} cannot do this")
    parameters = inspect.signature(scenario).parameters
    if "reader" in parameters and name in NO_READERS:
        pytest.skip(f"{name} {NO_READERS[name]}")
    reference = Reference(killer.bootstrap)
    given: dict[str, Any] = {
        "client": client,
        "reader": client,
        "reference": reference,
        "broker": killer,
        "topic": topic,
        "codec": "zstd" if "zstd" in client.codecs else "gzip",
        "acks": "all",
    }
    try:
        scenario(**{each: given[each] for each in parameters})
    finally:
        reference.close()
    assert killer.problem is None, killer.problem
    assert killer.kills
