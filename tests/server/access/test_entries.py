"""Entries of access control lists: made, found and deleted by requests."""

from __future__ import annotations

from typing import Any

from server_kit.access import HOST, Kind, Op, grant
from server_kit.broker_thread import BrokerThread
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.server.security.acl_filters import acls_of


def test_entries_are_made_found_and_deleted(secured: BrokerThread, admin: Wire) -> None:
    grant(secured)

    def creation(**fields: Any) -> AclCreation:
        given = {
            "resource_type": 2, "resource_name": "a", "resource_pattern_type": 3,
            "principal": "User:x", "host": "*", "operation": 3, "permission_type": 3,
        }  # fmt: skip
        return AclCreation(**{**given, **fields})

    wanted = [
        creation(),
        creation(),
        creation(resource_name="b", resource_pattern_type=4),
        creation(resource_type=4, resource_name="other"),
        creation(resource_name=""),
        creation(operation=1),
        creation(permission_type=0),
        creation(principal="nobody"),
        creation(resource_pattern_type=2),
    ]
    made = admin.call(CreateAclsRequest(creations=wanted), CreateAclsResponse, 3)
    bad = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in made.results] == [0, 0, 0, bad, bad, bad, bad, bad, bad]
    everything: dict[str, Any] = {
        "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1,
        "resource_name_filter": None, "principal_filter": None, "host_filter": None,
    }  # fmt: skip
    found = admin.call(DescribeAclsRequest(**everything), DescribeAclsResponse, 3)
    assert {
        (each.resource_name, each.pattern_type, len(each.acls)) for each in found.resources
    } == {
        ("a", 3, 1),
        ("b", 4, 1),
    }
    gone = admin.call(
        DeleteAclsRequest(
            filters=[DeleteAclsFilter(**{**everything, "resource_name_filter": "a"})]
        ),
        DeleteAclsResponse,
        3,
    )
    assert [len(each.matching_acls) for each in gone.filter_results] == [1]
    left = admin.call(DescribeAclsRequest(**everything), DescribeAclsResponse, 3)
    assert [each.resource_name for each in left.resources] == ["b"]


def test_very_many_entries(secured: BrokerThread, admin: Wire) -> None:
    """They go to the controller in portions, and are answered one by one, in order."""
    grant(secured)
    made = admin.call(
        CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=2,
                    resource_name="" if number % 100 == 7 else f"topic-{number % 1100}",
                    resource_pattern_type=3 + number % 2,
                    principal="User:x",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
                for number in range(1200)
            ]
        ),
        CreateAclsResponse,
        3,
    )
    assert [number for number, each in enumerate(made.results) if each.error_code] == [
        number for number in range(1200) if number % 100 == 7
    ]
    assert len(made.results) == 1200
    entries = len(list(acls_of(secured.broker.image)))
    assert entries == 1100 - 11
    assert secured.broker.authorizer is not None
    assert secured.broker.authorizer.allows("User:x", HOST, Op.READ, Kind.TOPIC, "topic-1098")

    def taking(**fields: Any) -> DeleteAclsFilter:
        everything: dict[str, Any] = {
            "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1,
            "permission_type": 1, "resource_name_filter": None, "principal_filter": None,
            "host_filter": None,
        }  # fmt: skip
        return DeleteAclsFilter(**{**everything, **fields})

    gone = admin.call(
        DeleteAclsRequest(
            filters=[taking(), taking(resource_name_filter="topic-8"), taking(operation=4)]
        ),
        DeleteAclsResponse,
        3,
    )
    # Each filter is told what it takes, also where another took it.
    assert [len(each.matching_acls) for each in gone.filter_results] == [entries, 1, 0]
    assert list(acls_of(secured.broker.image)) == []
    assert not secured.broker.authorizer.allows("User:x", HOST, Op.READ, Kind.TOPIC, "topic-1098")
