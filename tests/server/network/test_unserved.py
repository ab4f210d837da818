"""Refusals of APIs that are not served, in the shape of their own responses."""

from __future__ import annotations

from typing import Any

import pytest
from server_kit.wire import Wire

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import encode_request
from ottla.protocol.message import Message, Part
from ottla.protocol.messages import (
    alter_client_quotas,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    describe_share_group_offsets,
    share_group_describe,
    write_share_group_state,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.server.unserved import messages_of, unsupported_version


def error_codes(part: Any) -> list[int]:
    """Those of a response and of all that it lists."""
    found = [getattr(part, name) for name in part.declared if name == "error_code"]
    for name in part.declared:
        value = getattr(part, name)
        for item in value if isinstance(value, list) else ():
            found += error_codes(item) if isinstance(item, Part) else []
    return found


UNSERVED = [
    alter_client_quotas.AlterClientQuotasRequest(
        entries=[
            alter_client_quotas.EntryDataRequest(
                entity=[alter_client_quotas.EntityDataRequest(entity_type="user", entity_name=name)]
            )
            for name in ("alice", None)
        ]
    ),
    alter_replica_log_dirs.AlterReplicaLogDirsRequest(
        dirs=[
            alter_replica_log_dirs.AlterReplicaLogDir(
                path="/data",
                topics=[
                    alter_replica_log_dirs.AlterReplicaLogDirTopic(name="a", partitions=[0, 1])
                ],
            )
        ]
    ),
    alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="a", mechanism=1)],
        upsertions=[alter_user_scram_credentials.ScramCredentialUpsertion(name="b", mechanism=1)],
    ),
    share_group_describe.ShareGroupDescribeRequest(group_ids=["a", "b"]),
    describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
        groups=[
            describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
                group_id=name, topics=None
            )
            for name in ("a", "b")
        ]
    ),
    write_share_group_state.WriteShareGroupStateRequest(
        group_id="a",
        topics=[
            write_share_group_state.WriteStateData(
                topic_id=bytes(range(16)),
                partitions=[write_share_group_state.PartitionData(partition=n) for n in (0, 1)],
            )
        ],
    ),
]


@pytest.mark.parametrize("request_", UNSERVED, ids=lambda each: type(each).__name__)
def test_where_a_response_has_no_error_of_the_whole_each_entry_has_it(request_: Message) -> None:
    version = request_.versions[1]
    frame = encode_request(request_, version, 7, "c")[4:]
    answer = unsupported_version(request_.api_key, version, frame)
    assert answer is not None
    assert error_codes(answer) == [ErrorCode.UNSUPPORTED_VERSION] * 2
    # Each says what it is about.
    assert len({repr(each) for each in _lists(answer)}) == 2


def _lists(part: Any) -> list[Any]:
    """The innermost entries that have an error."""
    found = []
    for name in part.declared:
        value = getattr(part, name)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Part):
                found += [item] if "error_code" in item.declared else _lists(item)
    return found


def test_every_response_without_an_error_of_the_whole_has_its_way(wire: Wire) -> None:
    """An API that is not served is never answered with a closed connection."""
    if wire.is_elsewhere:
        pytest.skip("of Ottla alone")
    served = {
        each.api_key for each in wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).api_keys
    }
    for key in ApiKey:
        found = messages_of(key, 0) or messages_of(key, 1)
        if key in served or found is None:
            continue
        request = found[0]()
        version = request.versions[1]
        frame = encode_request(request, version, 7, "c")[4:]
        assert unsupported_version(key, version, frame) is not None, key


def test_a_large_request_of_an_api_that_is_not_served_is_not_read() -> None:
    request = share_group_describe.ShareGroupDescribeRequest(group_ids=["group"] * 10_000)
    frame = encode_request(request, 1, 7, "c")[4:]
    assert unsupported_version(request.api_key, 1, frame) is None
