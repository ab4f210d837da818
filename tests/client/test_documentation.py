"""The page about the client says what is so: its examples run, and print what it says.

Blocks of Python share one namespace, from the top of the page to its end. A block of text after one is
what it prints.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from formats_kit.registry import running_registry

from ottla import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from ottla.testing import BrokerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    line: int
    code: str
    prints: str | None


def examples(page: str) -> Iterator[Example]:
    blocks = list(_BLOCK.finditer(page))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block["kind"] != "python":
            continue
        follows = after is not None and after["kind"] == "text"
        line = page.count("\n", 0, block.start()) + 1
        yield Example(line, block["content"], after["content"] if follows and after else None)


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Those of the page, and those that stand for them here."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker, running_registry() as found:
        yield {"localhost:9092": broker.bootstrap, "http://localhost:8081": found.url}


def test_the_page(addresses: dict[str, str]) -> None:
    page = PAGE.read_text()
    assert page.count("```python") == len(list(examples(page)))
    namespace: dict[str, Any] = {"__name__": "page"}
    for example in examples(page):
        code = example.code
        for of_page, here in addresses.items():
            code = code.replace(of_page, here)
        # So that a failure names the line of the page.
        compiled = compile("\n" * example.line + code, str(PAGE), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, namespace)
        assert printed.getvalue() == (example.prints or ""), f"{PAGE.name}, line {example.line}"


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
def test_docstrings(client: type, addresses: dict[str, str]) -> None:
    """The examples of the classes, which print nothing."""
    text = client.__doc__ or ""
    lines = text.splitlines()
    code = "\n".join(line[8:] for line in lines if line.startswith(" " * 8))
    assert code
    for of_page, here in addresses.items():
        code = code.replace(of_page, here)
    exec(compile(code, client.__name__, "exec"), {})


@pytest.mark.parametrize(
    "client", [Producer, Consumer, Admin, AsyncProducer, AsyncConsumer, AsyncAdmin]
)
def test_every_public_call_says_what_it_does(client: type) -> None:
    silent = [
        name
        for name, member in inspect.getmembers(client)
        if not name.startswith("_") and not inspect.getdoc(member)
    ]
    assert not silent
