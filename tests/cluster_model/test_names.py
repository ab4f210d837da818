"""Topic names: Kafka's rules."""

from __future__ import annotations

import pytest

from ottla.cluster.names import check_topic_name, collision_key, fault_of_topic_name, is_internal
from ottla.protocol.errors import ErrorCode, ProtocolError


@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", "...", ".a", "-", "_", "a" * 249, "__consumer_offsets"]
)
def test_names_that_are_allowed(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a" * 250, "250 characters"),
        ("bad name", "only ASCII"),
        ("bad/name", "only ASCII"),
        ("ü", "only ASCII"),
        ("٣", "only ASCII"),
        ("a\n", "only ASCII"),
        ("a\x00", "only ASCII"),
    ],
)
def test_names_that_are_not(name: str, why: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        check_topic_name(name)
    assert raised.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert why in raised.value.message
    assert fault_of_topic_name(name) == raised.value.message


def test_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") == "a_b_c"
    assert collision_key("a.b") != collision_key("a.c")
    assert collision_key("a-b") is None


def test_the_topics_of_the_broker_itself() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__mine")
