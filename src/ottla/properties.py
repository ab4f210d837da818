"""Java's syntax for files of properties, in which Kafka writes its configurations.

`name=value`, `name:value` or `name value`, comments after # or !, lines that end in a backslash
continue in the next, and backslash escapes as in Java. No I/O here.
"""

# Annotations are not postponed here: as strings they would be compiled one by one at import.

from collections.abc import Iterator


def parse_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Each assignment: the number of its first line, the name, the value."""
    for number, line in _logical_lines(text):
        name, value = _split_property(line)
        yield number, name, value


_BLANKS = " \t\f"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, and the number of the first of each."""
    joined, first = "", 0
    # Not splitlines(), which also splits at characters that are no line ends in such a file.
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = line.lstrip(_BLANKS)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:  # an even number are escaped backslashes
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if first:
        yield first, joined


def _split_property(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_BLANKS)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_BLANKS)
    return _unescape(line[:end]), _unescape(value)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out = []
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\" and at < len(text):
            letter = text[at]
            at += 1
            if letter == "u":
                try:
                    letter = chr(int(text[at : at + 4], 16))
                    at += 4
                except ValueError:
                    pass  # Java gives up on the whole file; the letter as it stands does no harm
            else:
                letter = _ESCAPES.get(letter, letter)
        out.append(letter)
    return "".join(out)
