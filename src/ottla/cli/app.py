"""The `ottla` command with all its parts, and how its failures are told.

`main.py` comes here for everything but a plain `ottla serve`.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from ottla.cli.cleanup import close_all
from ottla.cli.commands import console, serve
from ottla.cli.commands.administration import (
    acls,
    clients,
    configs,
    groups,
    quotas,
    topics,
    transactions,
    users,
)
from ottla.cli.commands.cluster import app as cluster
from ottla.cli.commands.demo import demo
from ottla.cli.commands.pipeline import archive, collect, mirror, pipelines, spark, sql
from ottla.cli.commands.records import consume, log, produce, record
from ottla.cli.endings import discard_output, of_system, of_unsendable, tell
from ottla.cli.failures import INTERRUPTED, PIPE_CLOSED, Failure
from ottla.cli.options import Json, help_group
from ottla.cli.output import write_document, write_line
from ottla.version import __version__

# Set by a shell that wants to know how a command line may go on.
COMPLETION_VARIABLE = "_OTTLA_COMPLETE"
CLIENT_CONFIG = "--client-config"
CLIENT_CONFIG_VARIABLE = "OTTLA_CLIENT_CONFIG"


class _Ottla(TyperGroup):
    """Turns whatever a command raises into one sentence and an exit code."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        options["standalone_mode"] = False
        # Ctrl-C may come between the beginning of a call and its way into the client's loop.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        try:
            code = super().main(*args, **options)
        except Failure as failure:
            code = tell(failure.message, failure.exit_code)
        except typer.TyperException as mistake:
            code = tell(_usage_sentence(mistake), mistake.exit_code)
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OSError as problem:
            raise of_system(problem) from None
        except ValueError as problem:
            failure = of_unsendable(problem)
            if failure is None:
                raise
            raise failure from None
        finally:
            close_all()
        return answer


def _usage_sentence(mistake: typer.TyperException) -> str:
    message = " ".join(mistake.format_message().split()).replace("Value error, ", "")
    message = (message[:1].lower() + message[1:]).rstrip(".")
    context = getattr(mistake, "ctx", None)
    command = "ottla" if context is None else context.command_path
    return f"{message}; see `{command} --help`"


app = help_group(
    "An event streaming broker that speaks Kafka's protocol, and the tools around it.\n\n"
    "ottla --client-config FILE COMMAND connects with the options of a file of properties "
    "(security.protocol, sasl.username, …), as does the environment variable OTTLA_CLIENT_CONFIG.",
    cls=_Ottla,
    name="ottla",
)
app.command("serve", help=serve.HELP)(serve.command())
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(record.app, name="record")
app.command("sql")(sql.sql)
app.add_typer(spark.app, name="spark")
app.add_typer(pipelines.app, name="pipeline")
app.command("collect")(collect.collect)
app.command("archive")(archive.archive)
app.command("restore")(archive.restore)
app.command("mirror")(mirror.mirror)
app.command("demo")(demo.demo)
app.command("console")(console.console)
app.add_typer(configs.app, name="config")
app.add_typer(groups.app, name="group")
app.add_typer(clients.app, name="client")
app.add_typer(transactions.app, name="transaction")
app.add_typer(log.app, name="log")
app.add_typer(users.app, name="user")
app.add_typer(acls.app, name="acl")
app.add_typer(quotas.app, name="quota")


@app.command()
def version(json: Json = False) -> None:
    """Show the version of Ottla."""
    if json:
        python = ".".join(map(str, sys.version_info[:3]))
        write_document({"version": __version__, "python": python})
    else:
        write_line(f"ottla {__version__}")


def needed_for(words: list[str]) -> typer.Typer:
    """The application with the one command that the words begin with: making all takes a while."""
    if not words or COMPLETION_VARIABLE in os.environ:
        return app
    commands = [each for each in app.registered_commands if _name(each) == words[0]]
    groups = [each for each in app.registered_groups if each.name == words[0]]
    if not commands and not groups:
        return app  # help, or a mistake: then the others are suggested
    lean = copy.copy(app)
    lean.registered_commands, lean.registered_groups = commands, groups
    return lean


def _name(command: Any) -> str:
    return str(command.name or typer.main.get_command_name(command.callback.__name__))


def _take_client_config(words: list[str]) -> list[str]:
    """`--client-config FILE` before the command, for all that it does: also what it starts."""
    if not words:
        return words
    name, equals, path = words[0].partition("=")
    if name != CLIENT_CONFIG or (not equals and len(words) < 2):
        return words
    rest = words[1:] if equals else words[2:]
    os.environ[CLIENT_CONFIG_VARIABLE] = os.path.abspath(path if equals else words[1])
    return rest


def run(words: list[str]) -> NoReturn:
    words = _take_client_config(words)
    if words[:1] == ["--version"]:
        words = ["version", *words[1:]]
    command: Any = typer.main.get_command(needed_for(words))
    command.main(args=words, prog_name="ottla")
    raise AssertionError("a command always exits")
