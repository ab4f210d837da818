"""`ottla serve`: the quick way and typer's way are the same way, and the quick one is quick."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ottla.cli.app import app
from ottla.cli.commands import serve
from ottla.cli.commands.serve import OPTIONS, ServeArguments, parse
from ottla.server.configuration.broker_config import BrokerConfig, load

Run = Callable[..., Result]

# What a start of the broker must not wait for.
HEAVY = ("typer", "rich", "click", "confluent_kafka", "pydantic", "pygments", "cramjam")

_VALUES = st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text)


@st.composite
def _command_lines(draw: st.DrawFn) -> list[str]:
    words: list[str] = []
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=6)):
        name = draw(st.sampled_from(option.names))
        if option.kind == "flag":
            words.append(name)
        elif name.startswith("--") and draw(st.booleans()):
            words.append(f"{name}={draw(_VALUES)}")
        else:
            words += [name, draw(_VALUES)]
    return words


def _through_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> ServeArguments | None:
    seen: list[ServeArguments] = []

    def start(arguments: ServeArguments) -> int:
        seen.append(arguments)
        return 0

    monkeypatch.setattr(serve, "start", start)
    CliRunner().invoke(app, ["serve", *words])
    return seen[0] if seen else None


@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(_command_lines())
def test_both_ways_understand_the_same(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        quick = parse(words)
        assert quick is not None
        assert quick == _through_typer(words, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["--listen"],
        ["--no-such-option"],
        ["stray"],
        ["--"],
        ["--hints=yes"],
        ["--data", "x", "--help"],
        ["-dx"],
    ],
)
def test_all_else_is_left_to_typer(words: list[str]) -> None:
    assert parse(words) is None


def test_every_option_has_its_place_in_the_arguments() -> None:
    assert [option.parameter for option in OPTIONS] == list(ServeArguments._fields)


def test_help_shows_all_options_with_their_defaults() -> None:
    shown = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["serve", "--help"])
    assert shown.exit_code == 0
    for option in OPTIONS:
        assert option.names[0] in shown.output
        assert option.default in shown.output


def test_the_defaults_shown_are_those_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(environment={})
    shown = {option.parameter: option.default for option in OPTIONS}
    [listener] = config.listeners
    assert shown["listen"] == f"{listener.host}:{listener.port}"
    assert [shown["data"]] == list(config.log_dirs)
    assert shown["advertise"] == "that of --listen"
    assert config.advertised()[0].host == listener.host


def _configured(arguments: ServeArguments, monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    seen: list[BrokerConfig] = []

    def run(config: BrokerConfig, *, hints: bool) -> int:
        seen.append(config)
        return 7

    monkeypatch.setattr("ottla.server.run.run", run)
    assert serve.start_without_typer(arguments) == 7
    return seen[0]


def test_what_goes_before_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnode.id=2\nlog.dirs=/file\nlisteners=PLAINTEXT://:2\n")
    monkeypatch.setenv("KAFKA_LOG_DIRS", "/environment")
    monkeypatch.setenv("KAFKA_NODE_ID", "3")
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://:3")
    monkeypatch.setenv("OTTLA_SERVER", "127.0.0.1:1")
    arguments = ServeArguments(
        listen="127.0.0.1:4",
        data="/option",
        advertise="example.org:44",
        config=str(file),
        set=("log.dirs=/set",),
    )
    config = _configured(arguments, monkeypatch)
    assert config.num_partitions == 2
    assert config.node_id == 3
    assert [each.port for each in config.listeners] == [4]
    assert config.advertised()[0].host == "example.org"
    assert config.log_dirs == ("/set",)
    # OTTLA_SERVER is the clients' and no setting.
    assert config.warnings == ()


def test_no_variable_of_ours_is_taken_for_a_setting() -> None:
    source = Path(serve.__file__).parents[2]
    found = {
        name
        for module in source.rglob("*.py")
        for name in re.findall(r'"(OTTLA_[A-Z_]*[A-Z])"', module.read_text())
    }
    assert found == set(serve.NOT_SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (ServeArguments(listen="here"), "--listen"),
        (ServeArguments(set=("nothing",)), "--set nothing"),
        (ServeArguments(set=("num.partitions=none",)), "num.partitions=none"),
        (ServeArguments(config="/no/such/file"), "/no/such/file"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    arguments: ServeArguments, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.start_without_typer(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("ottla: ")
    assert sentence in told
    assert told.count("\n") == 1


def test_a_plain_start_imports_nothing_heavy() -> None:
    program = """
import sys
sys.argv = ["ottla", "serve", "--listen", "127.0.0.1:0", "--data", "unused", "--hints"]
from ottla.cli import main
import ottla.server.run
def run(config, *, hints):
    print(*sys.modules)
    return 0
ottla.server.run.run = run
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert "ottla.server.configuration.broker_config" in loaded
    assert [name for name in loaded if name.partition(".")[0] in HEAVY] == []
