"""Administration of a cluster: topics, settings, groups, offsets, transactions, access, brokers.

    with Admin("localhost:9092") as admin:
        admin.create_topic("orders", partitions=6, settings={"retention.ms": "86400000"})
        for topic in admin.list_topics():
            print(topic.name, len(topic.partitions))

    async with AsyncAdmin("localhost:9092") as admin:
        await admin.delete_topics(["orders"])

Calls about one thing raise its exception (TopicExists, GroupNotFound, …: see ottla.client.errors).
Calls about several raise `Failures` if any of them failed, which has the exception of each that did
and the results of the others. Every call takes `timeout` in seconds (default.api.timeout.ms).

`Admin` is `AsyncAdmin` for those who do not use asyncio: the same calls, which block. It may be used
from several threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ottla.client.admin.access import AccessAdmin
from ottla.client.admin.clients import ClientsAdmin
from ottla.client.admin.cluster import ClusterAdmin
from ottla.client.admin.configs import ConfigsAdmin
from ottla.client.admin.deletion import DeletionAdmin
from ottla.client.admin.groups import GroupsAdmin
from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.admin.transactions import TransactionsAdmin
from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import AdminSettings, read_settings
from ottla.client.loop import background_loop

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class AsyncAdmin(
    TopicsAdmin,
    DeletionAdmin,
    ConfigsAdmin,
    GroupsAdmin,
    OffsetsAdmin,
    TransactionsAdmin,
    AccessAdmin,
    ClusterAdmin,
    ClientsAdmin,
):
    """The admin client for asyncio; see the module. To be made where an event loop runs."""

    def __init__(
        self, servers: str | Mapping[str, object] | None = None, /, **options: object
    ) -> None:
        """`servers` is "host:port,…" or a dictionary of options; further options are keywords."""
        super().__init__(Cluster(read_settings(AdminSettings, servers, options)))

    async def close(self) -> None:
        """Close the connections."""
        await self.cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, _Parameters], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Admin, _Parameters], _Result]:
    """The method of AsyncAdmin as one of Admin: same parameters, same documentation, but it waits."""

    def call(
        self: Admin, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs
    ) -> _Result:
        return self._loop.run(method(self._admin, *arguments, **keywords))

    functools.update_wrapper(call, method)
    return call


class Admin:
    """The admin client: topics, settings, groups, offsets, access, the cluster.

        from ottla import Admin

        with Admin("localhost:9092") as admin:
            admin.create_topic("orders", partitions=6, settings={"retention.ms": "86400000"})
            (topic,) = admin.list_topics()
            assert (topic.name, len(topic.partitions)) == ("orders", 6)
            admin.delete_topics(["orders"])

    See the module for what is raised, and AsyncAdmin for what the methods do.
    """

    def __init__(
        self, servers: str | Mapping[str, object] | None = None, /, **options: object
    ) -> None:
        """`servers` is "host:port,…" or a dictionary of options; further options are keywords."""
        self._loop = background_loop()
        self._admin = self._loop.run(_make(servers, options))

    def close(self) -> None:
        """Close the connections."""
        if not self._loop.forked:
            self._loop.run(self._admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    create_topic = _blocking(AsyncAdmin.create_topic)
    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    delete_records = _blocking(AsyncAdmin.delete_records)
    delete_records_at = _blocking(AsyncAdmin.delete_records_at)

    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)

    list_groups = _blocking(AsyncAdmin.list_groups)
    describe_groups = _blocking(AsyncAdmin.describe_groups)
    delete_groups = _blocking(AsyncAdmin.delete_groups)
    remove_members = _blocking(AsyncAdmin.remove_members)

    list_offsets = _blocking(AsyncAdmin.list_offsets)
    committed_offsets = _blocking(AsyncAdmin.committed_offsets)
    group_lag = _blocking(AsyncAdmin.group_lag)
    plan_offsets = _blocking(AsyncAdmin.plan_offsets)
    apply_offsets = _blocking(AsyncAdmin.apply_offsets)
    alter_offsets = _blocking(AsyncAdmin.alter_offsets)
    delete_offsets = _blocking(AsyncAdmin.delete_offsets)

    list_transactions = _blocking(AsyncAdmin.list_transactions)
    describe_transactions = _blocking(AsyncAdmin.describe_transactions)
    describe_producers = _blocking(AsyncAdmin.describe_producers)
    find_hanging_transactions = _blocking(AsyncAdmin.find_hanging_transactions)
    abort_transaction = _blocking(AsyncAdmin.abort_transaction)
    fence_producer = _blocking(AsyncAdmin.fence_producer)
    end_transaction = _blocking(AsyncAdmin.end_transaction)

    describe_acls = _blocking(AsyncAdmin.describe_acls)
    create_acls = _blocking(AsyncAdmin.create_acls)
    delete_acls = _blocking(AsyncAdmin.delete_acls)
    describe_quotas = _blocking(AsyncAdmin.describe_quotas)
    alter_quotas = _blocking(AsyncAdmin.alter_quotas)
    describe_scram_users = _blocking(AsyncAdmin.describe_scram_users)
    set_scram_password = _blocking(AsyncAdmin.set_scram_password)
    delete_scram_password = _blocking(AsyncAdmin.delete_scram_password)

    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    list_clients = _blocking(AsyncAdmin.list_clients)
    describe_features = _blocking(AsyncAdmin.describe_features)
    update_features = _blocking(AsyncAdmin.update_features)
    describe_log_folders = _blocking(AsyncAdmin.describe_log_folders)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)
    list_reassignments = _blocking(AsyncAdmin.list_reassignments)
    alter_reassignments = _blocking(AsyncAdmin.alter_reassignments)
    unregister_broker = _blocking(AsyncAdmin.unregister_broker)


async def _make(
    servers: str | Mapping[str, object] | None, options: Mapping[str, object]
) -> AsyncAdmin:
    return AsyncAdmin(servers, **options)
