"""Subscriptions by regular expression (KIP-848), which the broker resolves.

The syntax is RE2's, as in Kafka (which uses its Java twin): no back-references, no look-around, and
therefore a time that grows with the length of the name alone. Python's own engine can be made to run
for ever by a pattern of ten characters, and the broker has one event loop.

A pattern has to match the whole of a topic's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# An alternative of a hundred topic names fits. What does not is a request to spend memory.
MAX_LENGTH: Final = 32_000
# Bytes that one compiled pattern may use: program and cache of states. A pattern whose program does
# not fit is refused; one whose states do not fit is only slower, and still linear. The library keeps
# the last 128 patterns compiled, so this times 128 is all that clients can make the broker spend.
MAX_MEMORY: Final = 1 << 20


class InvalidPattern(ValueError):
    """The text is not a regular expression that the broker accepts; says why."""


class TopicPattern:
    """A compiled pattern. Equal to every other one of the same text."""

    __slots__ = ("_full_match", "text")

    def __init__(self, text: str, full_match: Callable[[str], Any]) -> None:
        self.text = text
        self._full_match = full_match

    @classmethod
    def compile(cls, text: str) -> TopicPattern:
        """Compile a regular expression of RE2. Raises InvalidPattern."""
        if len(text) > MAX_LENGTH:
            raise InvalidPattern(f"{len(text):,} characters; at most {MAX_LENGTH:,} are accepted")
        # Imported on first use: few brokers ever see a pattern, and all of them start.
        import re2

        options = re2.Options()
        options.max_mem = MAX_MEMORY
        options.never_capture = True
        options.log_errors = False  # the client is told
        try:
            return cls(text, re2.compile(text, options).fullmatch)
        except (re2.error, UnicodeEncodeError) as error:
            raise InvalidPattern(str(error)) from None

    def matches(self, name: str) -> bool:
        return self._full_match(name) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"TopicPattern({self.text!r})"


def resolve(
    patterns: Iterable[TopicPattern], names: Collection[str]
) -> Mapping[TopicPattern, frozenset[str]]:
    """The names that each pattern matches."""
    return {pattern: frozenset(filter(pattern.matches, names)) for pattern in patterns}
