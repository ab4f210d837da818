"""What went wrong in Spark, in one sentence.

An error of a task, of a data source or of a query reaches the program as text: the Python traceback of
a worker, inside the message of a Java exception, inside the message of another. The part that helps
is in the middle of it: the message that the worker's exception had, or that of Spark's own error
without its code, its plan and its stack.
"""

from __future__ import annotations

import re
import sys
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
# The last line of a traceback, `package.Class: message`, with the lines that the message goes on for.
_RAISED: Final = re.compile(
    r"^(?P<class>[A-Za-z_][\w.]*)(?:: (?P<message>.*(?:\n(?!\s*$|\s+at |Traceback |SQLSTATE: ).*)*))?",
    re.MULTILINE,
)
# The same without a traceback, as the source's own exceptions come (pyspark_ottla.workers.plain_errors).
_OURS_ALONE: Final = re.compile(
    r"(?<![\w.])(?:pyspark_)?ottla\.[\w.]+: "
    r"(?P<message>.*(?:\n(?!\s*$|\s+at |Traceback |SQLSTATE: ).*)*)"
)
_FRAME: Final = re.compile(r"^(?:\s.*)?\n", re.MULTILINE)
_OURS: Final = ("ottla.", "pyspark_ottla.")
# What Spark puts around a message of its own: `[CODE.PART] … SQLSTATE: 42000; line 1 pos 7;`
_CODE: Final = re.compile(r"\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\]\s*")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}")
_POSITION: Final = re.compile(r"[;(]? ?line (\d+),? pos (\d+)\)?")
_WRAPPERS: Final = re.compile(
    r".*(?:terminated with exception: "
    r"|\(TID \d+\) \([^)]*\): (?:[\w.$]+: )?"
    r"|^An error occurred while calling [\w.]+\n: (?:[\w.$]+: )?)",
    re.DOTALL | re.MULTILINE,
)
# Where a message ends and its plan, its stack or the place in the program begins.
_END: Final = re.compile(
    r"\n\s*at [\w.$]+\(|\n\s*\n|\n== |\nDriver stacktrace|\nJVM stacktrace|;?\n'"
)


def error_sentence(error: BaseException) -> str:
    """What a user can do something about, without Spark's codes, plans and stacks."""
    return sentence_in(str(error)) or type(error).__name__


def sentence_in(text: str) -> str:
    """The sentence in the text of an error, without Spark's codes, plans and stacks."""
    raised = _raised_in_python(text)
    return _spark_message(text) if raised is None else raised


def _raised_in_python(text: str) -> str | None:
    """The message of the last exception in Python tracebacks, one of Ottla's if there is one."""
    found: list[tuple[str, str]] = []
    for traceback in text.split(_TRACEBACK)[1:]:
        at = 1 if traceback.startswith("\n") else 0
        while (frame := _FRAME.match(traceback, at)) is not None:
            at = frame.end()
        raised = _RAISED.match(traceback, at)
        if raised is not None:
            found.append((raised["class"], _one_line(_STATE.split(raised["message"] or "")[0])))
    if not found:
        alone = _OURS_ALONE.findall(text)
        return _one_line(_STATE.split(alone[-1])[0]) if alone else None
    ours = [(name, message) for name, message in found if name.startswith(_OURS)]
    name, message = (ours or found)[-1]
    if ours and message:
        return message
    short = name.rpartition(".")[2]
    return f"{short}: {message}" if message else short


def _spark_message(text: str) -> str:
    text = _WRAPPERS.sub("", text, count=1)
    position = _POSITION.search(text)
    message = _CODE.sub("", _END.split(_STATE.split(text)[0].strip())[0])
    # The lines after the first are general advice.
    message = _one_line(message.strip().partition("\n")[0]).rstrip(".;")
    if position is not None and position[0] not in message:
        message += f" (line {position[1]}, position {position[2]})"
    return message


def _one_line(text: str) -> str:
    return " ".join(text.split())


def is_of_spark(error: Exception) -> bool:
    """Whether an exception comes out of Spark: of PySpark itself, or of its JVM."""
    if "pyspark" not in sys.modules:
        return False
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
    from pyspark.errors import PySparkException

    return isinstance(error, Py4JError | PySparkException)
