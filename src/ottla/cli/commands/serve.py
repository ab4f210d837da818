"""`ottla serve`: its options, declared once, and the way to the broker.

Starting quickly is part of what Ottla promises, and typer alone takes longer to import than a
broker may take for much of its start. So `main.py` parses a plain `ottla serve …` with `parse`
below, and typer is imported only for help, completion and mistakes. Both are made from OPTIONS, so
they cannot disagree.

The options are short names for Kafka's settings (`--listen` is `listeners`, …). What `--set` says
wins over options, options over the environment, that over the file, that over the defaults.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from ottla.cli.failures import INTERRUPTED, Failure, Misuse

HELP = """Start a broker and serve until SIGTERM or Ctrl-C.

\b
ottla serve
ottla serve --listen 0.0.0.0:9092 --advertise broker.example:9092
ottla serve --config server.properties --set log.retention.hours=24

Settings have Kafka's names. --set wins over the other options, these over the environment \
(OTTLA_LOG_DIRS=… or KAFKA_LOG_DIRS=…), that over the --config file.
"""

# Variables in the environment that begin like settings and are none.
NOT_SETTINGS = (
    "OTTLA_CACHE_DIR",
    "OTTLA_CLIENT_CONFIG",
    "OTTLA_KERNELS",
    "OTTLA_MASTER",
    "OTTLA_PORTABLE",
    "OTTLA_SERVER",
    "OTTLA_SPARK_IDLE",
    "OTTLA_SPARK_SERVER",
)


# More than any machine has cores.
MOST_BROKERS = 1000


class ServeOption(NamedTuple):
    """One option: how it is written, what it means, and what holds when it is absent."""

    names: tuple[str, ...]  # the long name first
    kind: Literal["value", "many", "flag"]
    metavar: str
    help: str
    default: str = ""  # for the help: what the setting underneath has (a test compares the two)

    @property
    def parameter(self) -> str:
        return self.names[0].removeprefix("--").replace("-", "_")


OPTIONS = (
    ServeOption(
        ("--listen", "-l"),
        "value",
        "HOST:PORT",
        "Where to listen; Kafka's NAME://HOST:PORT,… works too.",
        "127.0.0.1:9092",
    ),
    ServeOption(
        ("--data", "-d"),
        "value",
        "DIR",
        "The folder for the logs; several are separated by commas.",
        "./data",
    ),
    ServeOption(
        ("--advertise", "-a"),
        "value",
        "HOST:PORT",
        "The address that clients are told to use.",
        "that of --listen",
    ),
    ServeOption(
        ("--node-id", "-n"),
        "value",
        "N",
        "The broker's number, which no other broker of its cluster has.",
        "1",
    ),
    ServeOption(
        ("--zookeeper", "-z"),
        "value",
        "HOST:PORT,…/PATH",
        "Be a broker of the cluster that these ZooKeeper servers coordinate.",
        "a single broker",
    ),
    ServeOption(
        ("--brokers", "-b"),
        "value",
        "N",
        "So many brokers on this machine, one for each core, on the ports after the first's.",
        "1",
    ),
    ServeOption(
        ("--config", "-c"),
        "value",
        "FILE",
        "A file of settings: Kafka's server.properties, or TOML.",
    ),
    ServeOption(
        ("--set", "-S"), "many", "NAME=VALUE", "Any setting by Kafka's name; repeat for more."
    ),
    ServeOption(("--hints",), "flag", "", "Say what to try next once the broker is up."),
)
_BY_NAME = {name: option for option in OPTIONS for name in option.names}


class ServeArguments(NamedTuple):
    """What was given on the command line, by the options' names."""

    listen: str | None = None
    data: str | None = None
    advertise: str | None = None
    node_id: str | None = None
    zookeeper: str | None = None
    brokers: str | None = None
    config: str | None = None
    set: tuple[str, ...] = ()
    hints: bool = False


def parse(words: Sequence[str]) -> ServeArguments | None:
    """The arguments after `serve`; None when they are anything but plain and correct.

    The caller then lets typer have a look, which shows help or tells the mistake.
    """
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = _BY_NAME.get(name)
        if option is None or (equals and (option.kind == "flag" or not name.startswith("--"))):
            return None
        if option.kind == "flag":
            given[option.parameter] = True
            continue
        if not equals:
            if not rest:
                return None
            value = rest.pop(0)
        if option.kind == "many":
            given[option.parameter] = (*given.get(option.parameter, ()), value)
        else:
            given[option.parameter] = value
    return ServeArguments(**given)


def command() -> Callable[..., None]:
    """The function that typer makes its `serve` of: its parameters are OPTIONS."""
    import inspect
    from typing import Annotated

    import typer

    types: dict[str, Any] = {"value": str | None, "many": list[str] | None, "flag": bool}
    parameters = []
    for option in OPTIONS:
        declared = typer.Option(
            *option.names,
            metavar=option.metavar or None,
            help=option.help,
            show_default=option.default or False,
        )
        parameters.append(
            inspect.Parameter(
                option.parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option.kind == "flag" else None,
                annotation=Annotated[types[option.kind], declared],
            )
        )

    def serve(**given: Any) -> None:
        given["set"] = tuple(given["set"] or ())
        raise typer.Exit(start(ServeArguments(**given)))

    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    return serve


def start(arguments: ServeArguments) -> int:
    """Run a broker until it is stopped; the exit status. Raises Failure."""
    # What comes to be from here on stays: the collector would look at it again and again, and find
    # nothing. The broker switches it on again once it serves.
    gc.disable()
    from ottla.server.configuration.broker_config import load
    from ottla.server.configuration.sources import ConfigurationError

    try:
        config = load(
            arguments.config,
            listen=arguments.listen,
            data=arguments.data,
            advertise=arguments.advertise,
            assignments=(*_as_settings(arguments), *arguments.set),
            not_settings=NOT_SETTINGS,
        )
    except ConfigurationError as problem:
        raise Misuse(str(problem).rstrip(".")) from None
    count = _count(arguments.brokers)
    if count > 1:
        from ottla.server.machine.supervisor import supervise

        try:
            return supervise(config, count, hints=arguments.hints)
        except ConfigurationError as problem:
            raise Misuse(str(problem)) from None
    from ottla.server.run import run

    return run(config, hints=arguments.hints)


def _count(text: str | None) -> int:
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_BROKERS):
        raise Misuse(f"--brokers {text} is not a number from 1 to {MOST_BROKERS}")
    return int(text)


def _as_settings(arguments: ServeArguments) -> list[str]:
    """Options that are nothing but short names of settings."""
    named = {"node.id": arguments.node_id, "zookeeper.connect": arguments.zookeeper}
    return [f"{name}={value}" for name, value in named.items() if value is not None]


def start_without_typer(arguments: ServeArguments) -> int:
    """`start`, with failures told as the typer application tells them."""
    try:
        return start(arguments)
    except Failure as failure:
        sys.stderr.write(f"ottla: {failure.message}\n")
        return failure.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
