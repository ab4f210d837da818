"""What the calls take and answer, in JSON. The descriptions are those of /api/openapi.json."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, Tag, model_validator

_LARGEST_OFFSET = 2**63 - 1

Offset = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_OFFSET)]
PartitionNumber = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]


class _Asked(BaseModel):
    # A misspelt field would be a wish that nobody hears.
    model_config = ConfigDict(extra="forbid")


class OffsetRange(_Asked):
    """All offsets from the first to the last, both included."""

    first: Offset
    last: Offset

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"the range {self.first} to {self.last} ends before it begins")
        return self


def _kind(given: object) -> str:
    return "range" if isinstance(given, dict | OffsetRange) else "offset"


# Told apart first, so that what is wrong with a range is not told as of an offset.
Offsets = Annotated[
    Annotated[Offset, Tag("offset")] | Annotated[OffsetRange, Tag("range")], Discriminator(_kind)
]


class Deletion(_Asked):
    """Which records to delete: by offsets, or by key."""

    offsets: dict[PartitionNumber, list[Offsets]] | None = Field(
        None, description="By partition: offsets and ranges of offsets."
    )
    key: str | None = Field(None, description="All records with this key (in UTF-8), wherever.")
    key_base64: str | None = Field(None, description="The same for a key that is no text.")
    skip_deleted: StrictBool = Field(
        False, description="Pass over offsets that are deleted already, in place of an error."
    )
    dry_run: StrictBool = Field(
        False, description="Delete nothing: only say whether it could be done, and how many."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = [each for each in (self.offsets, self.key, self.key_base64) if each is not None]
        if len(given) != 1:
            raise ValueError("give offsets, or key, or key_base64: one of them")
        if self.offsets is not None and not any(self.offsets.values()):
            raise ValueError("offsets names no offset")
        self.wanted_key()
        return self

    def wanted_key(self) -> bytes | None:
        if self.key is not None:
            try:
                return self.key.encode()
            except UnicodeEncodeError:
                raise ValueError("key holds half a surrogate pair; use key_base64") from None
        if self.key_base64 is None:
            return None
        try:
            return base64.b64decode(self.key_base64, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("key_base64 is not base64") from None

    def ranges(self) -> dict[int, list[range]]:
        """The ranges of offsets that `offsets` names, by partition."""
        return {
            int(partition): [
                range(each, each + 1) if isinstance(each, int) else range(each.first, each.last + 1)
                for each in some
            ]
            for partition, some in (self.offsets or {}).items()
            if some
        }


class Error(BaseModel):
    """Why something was not done."""

    status: int = Field(description="The HTTP status that belongs to it.")
    code: str = Field(description="Kafka's name of the error, or the status in words.")
    message: str


class ErrorAnswer(BaseModel):
    error: Error


class PartitionDeletion(BaseModel):
    """What became of one partition: a number of records, or an error."""

    deleted: int = 0
    error: Error | None = None


class DeletionAnswer(BaseModel):
    """How many records were deleted, or (dry_run) would be."""

    topic: str
    dry_run: bool
    deleted: int
    partitions: dict[str, PartitionDeletion]


class Health(BaseModel):
    """The console answers, and so does the cluster."""

    status: str
    version: str
    cluster_id: str | None
    brokers: int


class TopicLine(BaseModel):
    name: str
    internal: bool
    partitions: int
    replication_factor: int


class TopicList(BaseModel):
    topics: list[TopicLine]


class Partition(BaseModel):
    """A partition, who holds it, and from where to where its log goes."""

    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    start_offset: int | None = Field(description="The first offset there is.")
    stable_offset: int | None = Field(
        description="Records before it are committed, and may be deleted one by one."
    )
    end_offset: int | None = Field(description="The offset after the last record.")
    error: Error | None = Field(None, description="Why there are no offsets.")


class TopicPage(BaseModel):
    name: str
    topic_id: str | None
    internal: bool
    partitions: list[Partition]


class GroupMembership(BaseModel):
    group: str
    member: str


class Client(BaseModel):
    """One connection to a broker, of a client or of another broker."""

    broker: int
    connection: int = Field(description="Its number at this broker, for as long as that runs.")
    client_id: str
    software_name: str | None
    software_version: str | None
    address: str
    port: int
    listener: str
    security_protocol: str
    principal: str
    role: str = Field(description="client, broker, or follower (a broker that replicates).")
    peer_broker: int | None = Field(description="The number of that broker.")
    controller: bool = Field(description="That broker is the cluster's controller.")
    connected_since: int = Field(description="In milliseconds since 1970.")
    idle_ms: int = Field(description="For how long nothing has come from it.")
    requests: int
    received_bytes: int | None
    sent_bytes: int | None
    last_api: str | None = Field(description="Of its last request.")
    doing: str = Field(description="What it does, in words.")
    transactional_id: str | None
    producing: list[str] = Field(description="Topics to which it has produced.")
    more_producing: int = Field(description="Topics that are not named.")
    reading: list[str] = Field(description="Topics that its last Fetch asked for.")
    more_reading: int
    groups: list[GroupMembership]


class ClientList(BaseModel):
    clients: list[Client]


class RecordPage(BaseModel):
    """Some records of a partition. Bytes that are no UTF-8 stand under `key_base64`, `value_base64`."""

    topic: str
    partition: int
    start_offset: int = Field(description="The first offset that there is.")
    stable_offset: int = Field(description="What was read ends before it.")
    next_offset: int = Field(description="Where to go on.")
    records: list[dict[str, Any]]
