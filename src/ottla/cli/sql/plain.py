"""A plain `ottla sql QUERY`, asked of a Spark that is kept ready (see warm).

What reads command lines takes as long to import as the whole of a small answer. So a command line that
has a query and little else is understood here; whatever is not goes the long way, as does a query that
no Spark is there for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ottla.cli.addresses import check_servers
from ottla.cli.endings import discard_output, of_system, tell
from ottla.cli.environment import DEFAULT_SERVER, MASTER_VARIABLE, SERVER_VARIABLE
from ottla.cli.failures import INTERRUPTED, PIPE_CLOSED, Failure
from ottla.cli.sql import warm
from ottla.cli.sql.output import Form

_FORMS = {"--json": Form.JSON, "--csv": Form.CSV}
_SERVER = ("--server", "-s")


class PlainQuery(NamedTuple):
    text: str
    form: Form
    server: str


def parse(words: Sequence[str]) -> PlainQuery | None:
    """The words after `sql`; None if there is more to them."""
    server = os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    queries: list[str] = []
    forms: list[Form] = []
    left = iter(words)
    for word in left:
        if word in _FORMS:
            forms.append(_FORMS[word])
        elif word in _SERVER:
            server = next(left, "")
        elif word.startswith("-"):
            return None
        else:
            queries.append(word)
    if len(queries) != 1 or len(forms) > 1 or not queries[0] or not server:
        return None
    return PlainQuery(queries[0], forms[0] if forms else Form.TABLE, server)


def answer(words: Sequence[str]) -> bool:
    """Whether the answer was printed. Exits the process with what went wrong on the way."""
    query = parse(words)
    if query is None or os.environ.get(MASTER_VARIABLE) or "pyspark" in sys.modules:
        return False
    try:
        if not warm.is_wanted():
            return False
        check_servers(query.server)
        question = warm.Question(
            query.text, {"kafka.bootstrap.servers": query.server}, form=query.form.value
        )
        found = warm.answer_if_there(warm.query_settings(), question)
        sys.stdout.flush()
    except Failure as failure:
        sys.exit(tell(failure.message, failure.exit_code))
    except BrokenPipeError:
        discard_output()
        sys.exit(PIPE_CLOSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as problem:
        sys.exit(tell(of_system(problem).message, Failure.exit_code))
    return found is not None
