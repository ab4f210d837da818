"""The first words of a docstring say what the thing is: none is a riddle or only points elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
# Less cannot say what a thing is, beyond its name.
SHORTEST = 17
POINTERS = (
    "See the module",
    "See above",
    "The same in",
    "The same, ",
    "The other way",
    "Implements `",
)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def is_riddle(text: str) -> bool:
    return len(text) < SHORTEST or text.startswith(POINTERS)


def test_docstrings_say_what_the_thing_is() -> None:
    riddles = [
        f"{path.relative_to(SOURCES)}:{line}: {text.splitlines()[0]}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line, text in docstrings(path.read_text("utf-8"))
        if is_riddle(text)
    ]
    assert riddles == []


@pytest.mark.parametrize("text", ["One entry.", "See the module.", "The same in steps."])
def test_riddles_are_found(text: str) -> None:
    (found,) = docstrings(f'def function():\n    """{text}"""\n')
    assert found == (2, text)
    assert is_riddle(text)
