"""`ottla config` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

Run = Callable[..., Result]


def _settings(ottla: Run, *words: str) -> dict[str, Any]:
    listed = json.loads(ottla("config", "describe", *words, "--json").stdout)
    return {each["name"]: each for each in listed}


def test_topic(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    assert "no settings of its own" in ottla("config", "describe", "topic", topic).stdout
    ottla("config", "set", "topic", topic, "retention.ms=1000", "cleanup.policy=compact")
    own = _settings(ottla, "topic", topic)
    assert {name: each["value"] for name, each in own.items()} == {
        "retention.ms": "1000",
        "cleanup.policy": "compact",
    }
    assert own["retention.ms"]["source"] == "topic"
    every = _settings(ottla, "topic", topic, "--all")
    assert every["segment.bytes"]["changed"] is False
    assert "retention.ms" in ottla("config", "describe", "topic", topic).stdout
    ottla("config", "unset", "topic", topic, "retention.ms")
    assert list(_settings(ottla, "topic", topic)) == ["cleanup.policy"]


def test_broker(ottla: Run) -> None:
    every = _settings(ottla, "broker", "--all")
    number = every["node.id"]["value"]
    assert every["node.id"]["read_only"] is True
    before = every["log.cleaner.delete.retention.ms"]["value"]
    ottla("config", "set", "broker", number, "log.cleaner.delete.retention.ms=123456789")
    try:
        changed = _settings(ottla, "broker", number)["log.cleaner.delete.retention.ms"]
        assert (changed["value"], changed["source"]) == ("123456789", "broker")
    finally:
        ottla("config", "unset", "broker", number, "log.cleaner.delete.retention.ms")
    again = _settings(ottla, "broker", "--all")["log.cleaner.delete.retention.ms"]["value"]
    assert again == before


def test_all_brokers(ottla: Run) -> None:
    name = "log.cleaner.min.compaction.lag.ms"
    ottla("config", "set", "broker", "default", f"{name}=4321")
    try:
        assert _settings(ottla, "broker", "default")[name]["value"] == "4321"
        (found,) = [each for key, each in _settings(ottla, "broker").items() if key == name]
        assert (found["value"], found["source"]) == ("4321", "cluster")
    finally:
        ottla("config", "unset", "broker", "default", name)
    assert name not in _settings(ottla, "broker")


def test_mistakes(ottla: Run, offline: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    for change in ("no.such.setting=1", "retention.ms=soon"):
        result = ottla("config", "set", "topic", topic, change, fails=1)
        assert change.partition("=")[0] in result.stderr
        assert result.stderr.count("\n") == 1
    assert (
        "there is no broker '4711'" in ottla("config", "describe", "broker", "4711", fails=1).stderr
    )
    for words in (
        ("config", "unset", "topic", topic, "retentoin.ms"),
        ("topic", "alter", topic, "--unset", "retentoin.ms"),
    ):
        assert "retentoin.ms is not a topic setting" in ottla(*words, fails=1).stderr
    for words in (
        ("set", "topic", topic, "retention.ms"),
        ("unset", "topic", topic, "retention.ms=5"),
        ("describe", "topic"),
        ("describe", "client", "x"),
        ("describe",),
    ):
        result = offline("config", *words)
        assert result.exit_code == 2, words
        assert result.stderr.count("\n") == 1
