"""Subscriptions by pattern."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.coordinator.groups.patterns import (
    MAX_LENGTH,
    InvalidPattern,
    TopicPattern,
    resolve,
)

NAMES = ["orders", "orders.eu", "orders-us", "payments", "__consumer_offsets", "a\nb"]


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("orders", {"orders"}),  # the whole name, not a part of it
        ("ord", set()),
        ("orders.*", {"orders", "orders.eu", "orders-us"}),
        (r"orders\..*", {"orders.eu"}),
        ("^orders$", {"orders"}),
        ("(?i)ORDERS", {"orders"}),
        ("orders|payments", {"orders", "payments"}),
        ("payments|pay", {"payments"}),  # whichever branch comes first
        ("pay|payments", {"payments"}),
        ("[^_].*", {"orders", "orders.eu", "orders-us", "payments"}),  # a dot is no line end
        (r"\w+", {"orders", "payments", "__consumer_offsets"}),
        ("", set()),
        (r"\Qorders.eu\E", {"orders.eu"}),
        (r"\pL+", {"orders", "payments"}),
    ],
)
def test_matches_the_whole_name(text: str, matched: set[str]) -> None:
    pattern = TopicPattern.compile(text)
    assert {name for name in NAMES if pattern.matches(name)} == matched
    assert resolve([pattern], NAMES) == {pattern: matched}


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "[a-",
        "*",
        r"(a)\1",  # what RE2 leaves out: back-references,
        "(?=a)",  # looking ahead,
        "(?<!a)b",  # and behind
        "a{2000}",
        "(((a{100}){100}){100})",  # short, and too large when compiled
        "\ud800",
        "a" * (MAX_LENGTH + 1),
    ],
    ids=lambda text: ascii(text)[:24],
)
def test_refused(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPattern, match=r"."):
        TopicPattern.compile(text)
    assert capfd.readouterr().err == ""


def test_a_hundred_names() -> None:
    names = [f"a-rather-long-name-of-a-topic-{number:03}" for number in range(100)]
    assert resolve([TopicPattern.compile("|".join(names))], [*names, "another"]) == {
        TopicPattern.compile("|".join(names)): set(names)
    }


def test_no_pattern_takes_for_ever() -> None:
    """Python's own engine would need the age of the universe for the first of them."""
    name = "a" * 249
    assert not TopicPattern.compile("(a+)+b").matches(name)
    assert not TopicPattern.compile("(a|aa)*b").matches(name)
    assert TopicPattern.compile("(a?){249}a*").matches(name)


def test_patterns_of_one_text_are_one() -> None:
    found = resolve([TopicPattern.compile("p.*"), TopicPattern.compile("p.*")], NAMES)
    assert found == {TopicPattern.compile("p.*"): {"payments"}}
    assert TopicPattern.compile("a") != TopicPattern.compile("b")


def test_the_engine_is_not_loaded_before_it_is_needed() -> None:
    script = (
        "import sys; from ottla.coordinator.groups.patterns import TopicPattern;"
        "assert 're2' not in sys.modules; TopicPattern.compile('a'); assert 're2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
