"""Where the commands about topics, settings, groups and transactions talk to a broker.

They stand on Ottla's own Admin; every failure leaves as a `Failure` whose message is one sentence
that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from ottla.cli.addresses import check_servers
from ottla.cli.cleanup import close_at_end
from ottla.cli.cluster.failures import failures_reported
from ottla.cli.failures import Failure
from ottla.cli.records.positions import Position
from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource, ResourceKind, Setting, SettingSource
from ottla.client.admin.topics import TopicDescription
from ottla.client.positions import TopicPartition

REQUEST_TIMEOUT = 15.0  # seconds for what a command asks

_SOURCES = {
    SettingSource.TOPIC: "topic",
    SettingSource.GROUP: "group",
    SettingSource.BROKER: "broker",
    SettingSource.CLUSTER: "cluster",
    SettingSource.FILE: "file",
    SettingSource.DEFAULT: "default",
}
_KINDS = {"topic": ResourceKind.TOPIC, "broker": ResourceKind.BROKER}


class TopicSummary(NamedTuple):
    name: str
    partitions: int
    replication_factor: int
    internal: bool


class SettingValue(NamedTuple):
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    changed: bool  # set for this topic or broker itself, not inherited


class FoundOffset(NamedTuple):
    offset: int  # -1: no record fits
    timestamp: int


class Cluster:
    """An admin client of the cluster that --server names, for the time of one command."""

    def __init__(self, servers: str, timeout: float | None = None) -> None:
        timeout = REQUEST_TIMEOUT if timeout is None else timeout
        self.servers = check_servers(servers)
        self.admin = Admin(
            self.servers,
            client_id="ottla-cli",
            default_api_timeout_ms=timeout * 1000,
            request_timeout_ms=timeout * 1000,
        )
        close_at_end(self.admin.close)

    def failures_reported(
        self, *, topic: str | None = None, group: str | None = None, transaction: str | None = None
    ) -> AbstractContextManager[None]:
        """Whatever goes wrong inside is told in one sentence, about the thing that is named."""
        return failures_reported(self.servers, topic=topic, group=group, transaction=transaction)

    # Topics

    def topics(self) -> list[TopicSummary]:
        with self.failures_reported():
            listed = self.admin.list_topics(internal=True)
        return [
            TopicSummary(each.name, len(each.partitions), each.replication_factor, each.internal)
            for each in listed
        ]

    def brokers(self) -> list[int]:
        with self.failures_reported():
            return [node.id for node in self.admin.describe_cluster().brokers]

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        described = []
        for name in dict.fromkeys(names):
            with self.failures_reported(topic=name):
                described.append(self.admin.describe_topics(name)[name])
        return described

    def create_topic(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        settings: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> None:
        with self.failures_reported(topic=name):
            self.admin.create_topic(
                name, partitions, replication_factor, settings=settings, validate_only=dry_run
            )

    def delete_topic(self, name: str) -> None:
        with self.failures_reported(topic=name):
            self.admin.delete_topics(name)

    def add_partitions(self, topic: str, total: int) -> None:
        with self.failures_reported(topic=topic):
            self.admin.create_partitions(topic, total)

    # Settings

    def settings_of(self, kind: str, name: str) -> list[SettingValue]:
        """The settings of a resource; `kind` is "topic" or "broker"."""
        resource = Resource(_KINDS[kind], name)
        with self.failures_reported(topic=name if kind == "topic" else None):
            settings = self.admin.describe_configs(resource)[resource]
        return sorted(_value(kind, each) for each in settings.values())

    def alter_settings(
        self, kind: str, name: str, assign: Mapping[str, str], unset: Iterable[str]
    ) -> None:
        unset = list(unset)
        if unset and kind == "topic":
            self._require_settings(name, unset)
        with self.failures_reported(topic=name if kind == "topic" else None):
            self.admin.alter_configs(Resource(_KINDS[kind], name), assign=assign, unset=unset)

    def _require_settings(self, topic: str, wanted: Iterable[str]) -> None:
        """Failure if a name is no topic setting: brokers would accept an unset of it, and a misspelt
        name would pass for done."""
        known = {each.name for each in self.settings_of("topic", topic)}
        for name in wanted:
            if name not in known:
                raise Failure(
                    f"{name} is not a topic setting; settings and their values are listed by "
                    f"`ottla config describe topic {topic} --all`"
                )

    # Offsets

    def open_ranges(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """The offsets from the first open transaction to the end, which readers of committed records do
        not see yet, for each partition that has such."""
        asked = {TopicPartition(topic, index): Position.latest() for index in partitions}
        with self.failures_reported(topic=topic):
            ends = self.admin.list_offsets(asked)  # first: what comes meanwhile is not meant
            stable = self.admin.list_offsets(asked, isolation="read_committed")
        found = {place: (stable[place].offset or 0, ends[place].offset or 0) for place in asked}
        return {
            place.partition: (first, end) for place, (first, end) in found.items() if first < end
        }

    def offsets(
        self, topic: str, partitions: Iterable[int], spec: Position | None
    ) -> dict[int, FoundOffset]:
        """The offset of each partition at `spec`; None asks for that of the largest timestamp.

        The end is the last stable offset: what a reader of committed records can reach.
        """
        position = Position.max_timestamp() if spec is None else spec
        asked = {TopicPartition(topic, index): position for index in partitions}
        with self.failures_reported(topic=topic):
            found = self.admin.list_offsets(asked, isolation="read_committed")
        return {
            place.partition: FoundOffset(
                -1 if each.offset is None else each.offset,
                -1 if each.timestamp is None else each.timestamp,
            )
            for place, each in found.items()
        }


def _value(kind: str, setting: Setting) -> SettingValue:
    own = setting.source is SettingSource.TOPIC if kind == "topic" else not setting.is_default
    return SettingValue(
        setting.name,
        setting.value,
        _SOURCES.get(setting.source, setting.source.name.lower()),
        setting.read_only,
        setting.sensitive,
        own,
    )
