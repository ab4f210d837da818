"""The error table, against kio's."""

from __future__ import annotations

import pickle

from kio.schema.errors import ErrorCode as Theirs

from ottla.protocol.errors import ErrorCode, ProtocolError, error_code


def test_the_table_is_kafkas() -> None:
    # kio names errors in lower case and the good case "none", as Kafka does.
    theirs = {each.value: (each.name.upper(), each.retriable) for each in Theirs}
    ours = {int(each): (each.name, each.retriable) for each in ErrorCode}
    assert ours == theirs
    assert sorted(ours) == list(range(-1, 134))


def test_messages_are_sentences() -> None:
    messages = [each.message for each in ErrorCode]
    assert all(each.endswith(".") for each in messages)
    assert len(set(messages)) == len(messages)


def test_codes_are_integers() -> None:
    assert int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == 3
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.retriable
    assert not ErrorCode.INVALID_TOPIC_EXCEPTION.retriable


def test_lookup() -> None:
    assert error_code(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_code(30_000) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_protocol_error() -> None:
    error = ProtocolError(ErrorCode.INVALID_CONFIG, "no such setting")
    assert (error.code, error.message) == (40, "no such setting")
    assert str(error) == "INVALID_CONFIG: no such setting"
    assert ProtocolError(ErrorCode.INVALID_CONFIG).message == ErrorCode.INVALID_CONFIG.message
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.message) == (error.code, error.message)
