"""`ottla archive`, `restore` and `mirror`: what is wrong is told before Spark starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.cli.app import app
from ottla.cli.folders import local_folder
from ottla.testing import BrokerProcess


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands would run in a session of this process, if there is one, or start their own."""

    @contextmanager
    def start(*_words: object, **_options: object) -> Iterator[None]:
        raise AssertionError("Spark was started")
        yield

    for command in ("archive", "mirror"):
        monkeypatch.setattr(f"ottla.cli.commands.pipeline.{command}.spark_session", start)


def test_folders() -> None:
    assert local_folder(Path("file:///data/a%20b"), "--to") == Path("/data/a b")
    assert local_folder(Path("x:y/z"), "--to") == Path.cwd() / "x:y/z"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["archive", "nope", "--to", "x"], "there is no topic 'nope'"),
        (["archive", "t", "--to", "s3a://bucket/x"], "'s3a:' is another file system"),
        (["archive", "t", "--to", "hdfs://host:8020/x"], "'hdfs:' is another file system"),
        (["archive", "t", "--to", "/dev/null/x"], "/dev/null is a file, not a folder"),
        (["restore", "s3a://bucket/x", "--to", "t"], "'s3a:' is another file system"),
        (["restore", "x", "--to", "t", "--state", "gs://b/x"], "'gs:' is another file system"),
        (
            ["mirror", "t", "--from", "SERVER", "--to", "SERVER", "--state", "abfs://c@a/x"],
            "'abfs:' is another file system",
        ),
        (["archive", "t", "--to", "x", "--file-size", "big"], "--file-size takes a size"),
        (["archive", "t", "--to", "x", "--master", "sc://host"], "not on a Spark Connect server"),
        (["archive", "t", "--to", "x", "--format", "orc"], "'orc' is not one of"),
        (["restore", "nowhere", "--to", "t"], "nowhere has no rows"),
        (["restore", "nowhere", "--to", "a b"], "cannot be a topic's name"),
        (["mirror", "--from", "SERVER", "--to", "SERVER"], "name topics, or give --pattern"),
        (["mirror", "--from", "SERVER", "--to", "SERVER", "--pattern", "("], "--pattern takes"),
        (["mirror", "nope", "--from", "SERVER", "--to", "SERVER"], "there is no topic 'nope'"),
        (
            ["mirror", "t", "--from", "127.0.0.1:1", "--to", "SERVER"],
            "nothing answers at 127.0.0.1:1",
        ),
    ],
)
def test_mistakes(
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [broker.bootstrap if word == "SERVER" else word for word in words]
    done = CliRunner(env={"OTTLA_SERVER": broker.bootstrap, "COLUMNS": "200"}).invoke(app, given)
    assert done.exit_code in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr  # one sentence
    assert list(tmp_path.iterdir()) == []
