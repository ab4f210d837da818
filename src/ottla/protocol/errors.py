"""The error codes of Kafka's protocol: one table of code, name, whether to retry, and meaning.

These are the errors that travel on the wire. A handler that cannot do what was asked raises
ProtocolError; what goes wrong inside (a disk, a bug) has exceptions of its own and is turned into a
code where a response is made.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self


class ErrorCode(IntEnum):
    """An error code. It is an integer, so it goes into a response as it is."""

    retriable: bool  # the same request may succeed later, perhaps on another broker
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way it did not foresee."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside what the log holds."
    CORRUPT_MESSAGE = (
        2,
        True,
        "A record batch is damaged, too long, or has no key where the topic needs one.",
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "No such topic or partition here."
    INVALID_FETCH_SIZE = 4, False, "The fetch size makes no sense."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        True,
        "This broker does not lead the partition, or holds no replica of it.",
    )
    REQUEST_TIMED_OUT = 7, True, "The time for the request ran out."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than the broker or the topic allows."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller has changed."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata string of a committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection went away before the answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator."
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "The topic's name is not allowed, or the operation is not allowed on this topic.",
    )
    RECORD_LIST_TOO_LARGE = 18, False, "The batches are larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas are in sync; nothing was written."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were written, but too few replicas are in sync.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member's protocols do not fit those of the group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = (
        26,
        False,
        "The session timeout is outside the range that the broker allows.",
    )
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The committed offsets are too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not allowed on this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not allowed on this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not allowed on the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's clock."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "The broker does not speak this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is not valid, or there are too few brokers for it.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A setting is not valid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The message format of the log cannot do this."
    POLICY_VIOLATION = 44, False, "A policy of the broker forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "A sequence number is missing between this batch and the last one.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The batch was written before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than one already seen."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "The producer id does not belong to this transactional id.",
    )
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        False,
        "The transaction timeout is longer than the broker allows.",
    )
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on the same transaction is under way."
    TRANSACTION_COORDINATOR_FENCED = (
        52,
        False,
        "The transaction's coordinator has been replaced by a newer one.",
    )
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not allowed on this transactional id."
    SECURITY_DISABLED = 54, False, "Security is switched off on this broker."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, because something before it failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk failed under this partition's log."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such data folder."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker no longer remembers this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being moved."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "No such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63,
        False,
        "The principal is neither owner nor renewer of the token.",
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Delegation tokens cannot be asked for over this kind of connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not allowed on this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, False, "The group has members."
    GROUP_ID_NOT_FOUND = 69, False, "No such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker does not know this fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session's epoch is not the next one."
    LISTENER_NOT_FOUND = (
        72,
        True,
        "The leader has no listener of the name that the request came in on.",
    )
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is switched off."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch in the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch in the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "The client cannot read the compression of this partition's records.",
    )
    STALE_BROKER_EPOCH = 77, False, "The broker's epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, True, "After an election, the high watermark is not certain yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead is available."
    ELECTION_NOT_NEEDED = 84, True, "The leader is the one wanted already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group still subscribes to the topic."
    INVALID_RECORD = 87, False, "A record did not pass validation."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Offsets of an open transaction must be settled first."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is used up."
    PRODUCER_FENCED = 90, False, "A newer producer has taken this transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, False, "The voter sets do not agree."
    INVALID_UPDATE_VERSION = 95, False, "The version to update to is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "No such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "No topic with this id here."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log belongs to a topic with another id."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "No such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        True,
        "A fetch session must use topic ids throughout or not at all.",
    )
    INELIGIBLE_REPLICA = 107, False, "A replica may not join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, False, "The change was made, and another leader was elected by it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset has moved to tiered storage."
    FENCED_MEMBER_EPOCH = (
        110,
        False,
        "The member's epoch is over: drop all partitions and join again.",
    )
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this group instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = (
        113,
        False,
        "The member's epoch is old: take the new one from the next heartbeat.",
    )
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request came to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "No such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is unknown or outdated."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed telemetry is too large."
    INVALID_REGISTRATION = 119, False, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction cannot go on; abort it and begin another."
    INVALID_RECORD_STATE = 121, False, "The records are not in a state that can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker does not know this share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session's epoch is not the next one."
    FENCED_STATE_EPOCH = 124, False, "The epoch of the share group's state does not match."
    INVALID_VOTER_KEY = 125, False, "The voter's key does not match the replica's."
    DUPLICATE_VOTER = 126, False, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = (
        129,
        False,
        "The client's metadata is too old: begin again from the bootstrap servers.",
    )
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology's epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology's epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has as many share sessions as it allows."


class ProtocolError(Exception):
    """A request, or a part of one, that is answered with an error code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message if message is not None else code.message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


_BY_CODE: Final[dict[int, ErrorCode]] = {int(member): member for member in ErrorCode}


def error_code(code: int) -> ErrorCode:
    """The entry of a code; a code from a newer broker counts as an unknown server error."""
    return _BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
