"""Connection: pipelining, versions, time limits, throttling, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from types import SimpleNamespace

import pytest
from wire_kit.scripted import OFFERED, Asked, serving

from ottla import __version__
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Record, build_batch
from ottla.testing import BrokerProcess, free_port
from ottla.wire import connection as wire_connection
from ottla.wire.connection import Connection, ConnectionOptions
from ottla.wire.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    RequestTimeout,
    UnsupportedByBroker,
)

ALL = MetadataRequest(topics=None)


async def metadata_of(request: Asked) -> None:
    request.answer(MetadataResponse())


async def never(_: Asked) -> None:
    """No answer."""


async def test_requests_are_pipelined_and_answered_in_order() -> None:
    waiting: list[Asked] = []

    async def script(request: Asked) -> None:
        waiting.append(request)
        if len(waiting) == 50:  # only when all are there: a client that waits would hang
            for number, each in enumerate(waiting):
                each.answer(MetadataResponse(cluster_id=f"answer {number}"))

    async with serving(script) as (port, asked):
        connection = await Connection.open("127.0.0.1", port, client_id="piper")
        answers = await asyncio.gather(
            *(connection.request(ALL, MetadataResponse) for _ in range(50))
        )
        assert [answer.cluster_id for answer in answers] == [f"answer {n}" for n in range(50)]
        assert {each.client_id for each in asked} == {"piper"}
        assert connection.in_flight == 0
        connection.close()


async def test_it_says_who_it_is() -> None:
    async with serving(metadata_of) as (port, asked):
        connection = await Connection.open("127.0.0.1", port)
        hello, _ = ApiVersionsRequest.decode(asked[0].body, 0, asked[0].version)
        assert asked[0].version == 4
        assert hello.client_software_name == "ottla"
        assert hello.client_software_version == __version__
        connection.close()


@pytest.mark.parametrize("known", [0, 2, 3])
async def test_an_older_broker_answers_in_version_0(known: int) -> None:
    async def handshake(request: Asked) -> None:
        if request.version > known:
            own = [ApiVersion(api_key=ApiKey.API_VERSIONS, max_version=known)] if known else []
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
            request.answer(refusal, version=0)
        else:
            request.answer(ApiVersionsResponse(api_keys=OFFERED))

    async with serving(metadata_of, handshake=handshake) as (port, asked):
        connection = await Connection.open("127.0.0.1", port)
        assert [each.version for each in asked] == [4, known]
        assert connection.version_of(MetadataRequest) == 13
        connection.close()


async def test_versions_are_the_newest_common_ones() -> None:
    async with serving(metadata_of) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        assert connection.version_of(FetchRequest) == 17
        assert connection.version_of(FetchRequest, at_most=12) == 12
        assert connection.version_of(ProduceRequest) == 12
        with pytest.raises(UnsupportedByBroker, match="ListGroups in no version"):
            connection.version_of(ListGroupsRequest)
        with pytest.raises(UnsupportedByBroker, match="v4 to v17"):
            connection.version_of(FetchRequest, at_most=3)
        assert not connection.versions.offers(FetchRequest, 18)
        connection.close()


async def test_a_late_answer_ends_the_connection() -> None:
    async with serving(never) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        patient = asyncio.ensure_future(connection.request(ALL, MetadataResponse, timeout=30))
        with pytest.raises(RequestTimeout, match=r"Metadata within 0\.1 s"):
            await connection.request(ALL, MetadataResponse, timeout=0.1)
        with pytest.raises(ConnectionLost):
            await patient
        assert connection.closed
        with pytest.raises(ConnectionLost):
            await connection.request(ALL, MetadataResponse)


async def test_who_gives_up_leaves_the_connection_to_the_others() -> None:
    waiting: list[Asked] = []

    async def script(request: Asked) -> None:
        waiting.append(request)
        if len(waiting) == 2:
            for each in waiting:
                each.answer(MetadataResponse(controller_id=each.correlation_id))

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.request(ALL, MetadataResponse)
        answer = await connection.request(ALL, MetadataResponse)
        assert answer.controller_id == waiting[1].correlation_id
        connection.close()


async def test_a_throttle_time_is_kept() -> None:
    """The next request goes out only when the time is over (KIP-219)."""
    came: list[float] = []

    async def script(request: Asked) -> None:
        came.append(time.monotonic())
        throttle = 300 if len(came) == 1 else 0
        request.answer(MetadataResponse(throttle_time_ms=throttle))

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        await connection.request(ALL, MetadataResponse)
        # A time limit shorter than the throttle time counts from when it is sent.
        await connection.request(ALL, MetadataResponse, timeout=0.25)
        assert came[1] - came[0] >= 0.29
        connection.close()


async def test_a_throttle_time_of_an_old_version_was_kept_by_the_broker() -> None:
    async def script(request: Asked) -> None:
        request.answer(MetadataResponse(throttle_time_ms=60_000))

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        for _ in range(2):
            await connection.request(ALL, MetadataResponse, version=5, timeout=5)
        connection.close()


async def test_closing_fails_what_is_in_flight() -> None:
    async with serving(never) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        request = asyncio.ensure_future(connection.request(ALL, MetadataResponse))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ConnectionLost, match="closed here"):
            await request
        await connection.wait_closed()


async def test_a_broker_that_hangs_up() -> None:
    async def script(request: Asked) -> None:
        request.writer.write(struct.pack(">i", 1000) + b"half an answer")
        request.writer.close()

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionLost, match="the broker closed it"):
            await connection.request(ALL, MetadataResponse)


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack(">ii", 4, 99),  # an answer to nothing
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 2) + b"xx",  # shorter than a header
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
async def test_what_is_no_answer(nonsense: bytes) -> None:
    async def script(request: Asked) -> None:
        request.writer.write(nonsense)

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ProtocolViolation):
            await connection.request(ALL, MetadataResponse)
        assert connection.closed


async def test_an_answer_that_cannot_be_decoded() -> None:
    async def script(request: Asked) -> None:
        body = b"\xff" * 20
        request.writer.write(struct.pack(">iiB", len(body) + 5, request.correlation_id, 0) + body)

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ProtocolViolation, match="MetadataResponse"):
            await connection.request(ALL, MetadataResponse)


async def test_an_answer_beyond_the_limit() -> None:
    async def script(request: Asked) -> None:
        request.answer(MetadataResponse(cluster_id="x" * 20_000))

    async with serving(script) as (port, _):
        options = ConnectionOptions(receive_limit=10_000)
        connection = await Connection.open("127.0.0.1", port, options=options)
        with pytest.raises(ProtocolViolation, match="10000 are the limit"):
            await connection.request(ALL, MetadataResponse)


async def test_nobody_there() -> None:
    with pytest.raises(ConnectFailed, match="refused"):
        await Connection.open("127.0.0.1", free_port())
    with pytest.raises(ConnectFailed, match="name is unknown"):
        await Connection.open("no-such-host.invalid", 9092)


async def test_the_next_address_of_a_name_whose_first_one_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(metadata_of) as (port, _):
        with socket.socket() as full, contextlib.ExitStack() as stack:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            # Its queue is full of connections that nobody accepts: it does not answer any more.
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    waiting.connect(full.getsockname())
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")

            async def two_addresses(*_: object, **__: object) -> list[object]:
                return [(*kind, full.getsockname()), (*kind, ("127.0.0.1", port))]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two_addresses)
            options = ConnectionOptions(setup_timeout=2)
            connection = await Connection.open("broker.example", port, options=options)
            await connection.request(ALL, MetadataResponse)
            connection.close()
            nobody = free_port()

            async def none_that_answers(*_: object, **__: object) -> list[object]:
                return [(*kind, full.getsockname()), (*kind, ("127.0.0.1", nobody))]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", none_that_answers)
            with pytest.raises(ConnectFailed, match="no answer"):
                await Connection.open("broker.example", port, options=options)


async def test_no_descriptor_left_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.create_server(("127.0.0.1", 0)) as listener, monkeypatch.context() as patch:
        patch.setattr(wire_connection, "socket", SimpleNamespace(**vars(socket)))
        patch.setattr(wire_connection.socket, "socket", no_descriptor)
        with pytest.raises(ConnectFailed, match="Too many open files"):
            await Connection.open("127.0.0.1", listener.getsockname()[1])


async def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(ConnectFailed, match="name is unknown"):
        await Connection.open("a" * 64 + ".example", 9092)


async def test_somebody_who_never_speaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = ConnectionOptions(setup_timeout=0.2)
        with pytest.raises(ConnectFailed, match=r"not set up within 0\.2 s"):
            await Connection.open("127.0.0.1", silent.getsockname()[1], options=options)


async def test_large_answers_are_views_and_stay_as_they_are() -> None:
    """The same buffer is used again only when nobody looks at it any more."""
    contents = [os.urandom(9 << 20) for _ in range(6)]

    async def script(request: Asked) -> None:
        number = request.correlation_id % 6
        request.writer.write(
            struct.pack(">iiB", len(contents[number]) + 5, request.correlation_id, 0)
        )
        request.writer.write(contents[number])

    async with serving(script) as (port, _):
        connection = await Connection.open("127.0.0.1", port)
        body = FetchRequest().encode_parts(17)
        kept = []
        for turn in range(12):
            frame, at = await connection.send(ApiKey.FETCH, 17, body)
            assert isinstance(frame, memoryview)
            assert frame.readonly
            view = frame[at:]
            del frame
            assert view == contents[(turn + 1) % 6]
            if turn % 3 == 0:
                kept.append((turn, view))
            del view
        for turn, view in kept:
            assert view == contents[(turn + 1) % 6]
        connection.close()


async def test_a_large_request_reaches_a_slow_reader_whole() -> None:
    """More than the socket takes at once, in pieces that are not joined."""
    pieces = [os.urandom(3 << 20), b"small", os.urandom(5 << 20), b"", b"end"]

    async def script(request: Asked) -> None:
        await asyncio.sleep(0.05)
        request.answer(MetadataResponse(), 0)

    async with serving(script) as (port, asked):
        connection = await Connection.open("127.0.0.1", port)
        sent = [connection.send(ApiKey.METADATA, 0, pieces) for _ in range(3)]
        assert connection.unsent_bytes > 0
        await asyncio.gather(*sent)
        assert connection.unsent_bytes == 0
        assert [each.body for each in asked[1:]] == [b"".join(pieces)] * 3
        connection.close()


async def test_a_request_without_an_answer_goes_between_others() -> None:
    async def script(request: Asked) -> None:
        if request.body != b"unanswered":
            request.answer(MetadataResponse())

    async with serving(script) as (port, asked):
        connection = await Connection.open("127.0.0.1", port)
        before = asyncio.ensure_future(connection.request(ALL, MetadataResponse))
        await asyncio.sleep(0)
        connection.send_unanswered(ApiKey.METADATA, 0, [b"unanswered"])
        await connection.request(ALL, MetadataResponse)
        await before
        assert [each.body == b"unanswered" for each in asked] == [False, False, True, False]
        connection.close()


async def test_produce_and_fetch_with_a_broker(broker: BrokerProcess) -> None:
    connection = await Connection.open(broker.host, broker.port)
    name = "wire-" + os.urandom(4).hex()
    created = await connection.request(
        CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        ),
        CreateTopicsResponse,
    )
    assert created.topics[0].error_code == 0
    topic_id = created.topics[0].topic_id
    batch = build_batch(
        Record(n, int(time.time() * 1000), None, os.urandom(1000)) for n in range(500)
    )

    def produce(acks: int) -> ProduceRequest:
        data = [PartitionProduceData(index=0, records=batch)]
        topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=data)
        return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic])

    version = connection.version_of(ProduceRequest)
    connection.send_unanswered(ApiKey.PRODUCE, version, produce(0).encode_parts(version))
    answer = await connection.request(produce(-1), ProduceResponse)
    assert answer.responses[0].partition_responses[0].base_offset == 500
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10 << 20)
    fetched = await connection.request(
        FetchRequest(
            max_wait_ms=100,
            max_bytes=10 << 20,
            topics=[FetchTopic(topic=name, topic_id=topic_id, partitions=[partition])],
        ),
        FetchResponse,
    )
    records = fetched.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert len(records) == 2 * len(batch)
    assert records[len(batch) + 61 :] == batch[61:]
    named = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    [topic] = (await connection.request(named, MetadataResponse)).topics
    assert topic.name == name
    connection.close()
