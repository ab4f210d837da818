"""What is inside of produced batches: crafted ones get the answer that Apache Kafka gave to them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from record_kit.crafted_batches import CASES, TOPICS, Codec, batch, build, crafted, good, record
from record_kit.kafkas_answers import expected, kafkas_answers
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fill,
    now_ms,
    produce,
    produce_request,
    read_all,
    values_of,
    whole_batches,
)
from server_kit.crafted import ask
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import Record, build_batch, check_batch, read_header
from ottla.record.validation import checking
from ottla.record.validation.readiness import readiness

KAFKA = kafkas_answers()


@pytest.fixture(scope="module")
def topics(inside: BrokerThread) -> dict[str, Topic]:
    with inside.wire() as wire:
        return {kind: create_topic(wire, **settings) for kind, settings in TOPICS.items()}


@pytest.fixture(params=["compiled", "plain"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both walks; the compiled one may come at any time, so its absence is made."""
    if request.param == "plain":
        monkeypatch.setattr(readiness, "compiled", None)
    else:
        assert readiness.load() is not None
    return str(request.param)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is checked off the loop."""
    monkeypatch.setattr("ottla.server.handlers.produce.inside.is_quick", lambda _: False)


def wrong_answers(wire: Wire, topics: dict[str, Topic], name: str) -> list[Any]:
    wrong = []
    for place in crafted():
        if place[0] != name:
            continue
        _, codec, kind = place
        wanted = expected(place, KAFKA[place])
        now = now_ms()
        answer = ask(wire, topics[kind], build(name, codec, now), now)
        if "stored" not in wanted:
            answer.pop("stored", None)
        if answer != wanted:
            wrong.append((codec.name, kind, answer, wanted))
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_crafted_batches_get_kafkas_answer(
    wire: Wire, topics: dict[str, Topic], walk: str, name: str
) -> None:
    assert not wrong_answers(wire, topics, name)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", CASES)
def test_crafted_batches_get_the_same_answer_off_the_loop(
    wire: Wire, topics: dict[str, Topic], name: str
) -> None:
    assert readiness.load() is not None
    assert not wrong_answers(wire, topics, name)
