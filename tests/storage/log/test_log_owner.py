"""A log's fields are assigned by the log alone; everybody else asks for an operation by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla.storage.log.log import Log
from ottla.storage.log.state import LogState

SOURCE = Path(ottla.__file__).parent
FIELDS = {
    name.removeprefix("_") if name == "_config" else name
    for kind in Log.__mro__
    for name in getattr(kind, "__slots__", ())
}
# Those that may know storage: elsewhere there are no logs.
ROOMS = ("storage", "replication", "coordinator", "server", "cli", "testing")
# What holds more of the log's state, with the methods that change it.
HELD = {
    "segments": {"add", "take_first", "take_from", "replace"},
    "pending_snapshots": {"append", "clear", "extend", "insert", "pop", "remove"},
    "retiring": {"append", "clear", "extend", "insert", "pop", "remove"},
}
# Names under which nothing but a log is known in the source.
LOGS = {"log", "_log", "each", "opened", "wanted"}
# Others that have a field of the same name, and are no logs.
OTHERS = {
    "answer",
    "watched",
    "folder",
    "failed",
    "partition",
    "append",
    "found",
    "index",
    "segment",
}


def intrusions(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of whatever changes a log from outside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            held = node.func.value
            if (
                isinstance(held, ast.Attribute)
                and node.func.attr in HELD.get(held.attr, ())
                and _name(held.value) in LOGS
            ):
                yield node.lineno, ast.unparse(node)
            continue
        else:
            continue
        for field in _fields(targets):
            if field.attr in FIELDS and _is_log(field):
                yield node.lineno, ast.unparse(node)


def _fields(targets: list[ast.expr]) -> Iterator[ast.Attribute]:
    """What is assigned to: `a.b`, `a.b[c]`, and each of `a.b, c.d`."""
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _fields(target.elts)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            yield from _fields([target.value])
        elif isinstance(target, ast.Attribute):
            yield target


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_log(field: ast.Attribute) -> bool:
    name = _name(field.value)
    if name in LOGS:
        return True
    # Fields that only a log has: whoever it is called by.
    return name != "self" and name not in OTHERS and field.attr in UNMISTAKABLE


UNMISTAKABLE = {
    "appended_bytes",
    "compaction",
    "first_dirty_offset",
    "flush_at_offset",
    "flushed_bytes",
    "flushing",
    "folder_unsynced",
    "high_watermark",
    "log_end_offset",
    "log_start_offset",
    "metadata_unsynced",
    "pending_snapshots",
    "recovery_point",
    "retiring",
    "snapshot_bytes",
    "unflushed_since",
}


def test_nobody_but_the_log_assigns_its_fields() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for room in ROOMS
        for path in sorted((SOURCE / room).rglob("*.py"))
        for line, text in intrusions(path.read_text())
    ]
    assert found == []


def test_the_fields_are_known() -> None:
    assert UNMISTAKABLE < FIELDS
    assert issubclass(Log, LogState)


@pytest.mark.parametrize(
    "code",
    [
        "log.log_end_offset = 3",
        "job.log.recovery_point = max(1, 2)",
        "self._log.unflushed_since += 1",
        "other.log_start_offset, x = 1, 2",
        "log.offline = 'gone'",
        "log.config = config",
        "log.pending_snapshots[:0] = job.snapshots",
        "log.segments.take_first(2)",
        "log.retiring.append(retired)",
        "del log.flushing",
    ],
)
def test_an_intrusion_is_seen(code: str) -> None:
    assert list(intrusions(code))


@pytest.mark.parametrize(
    "code", ["folder.offline = 'x'", "self.size = 3", "x = log.offline", "a[log.topic] = 1"]
)
def test_others_may_do_as_they_like(code: str) -> None:
    assert not list(intrusions(code))
