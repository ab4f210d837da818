"""The progress of a streaming query, with names for people to read.

    described(query.lastProgress)["sources"][0]["description"]      # ottla[orders]

Spark describes a source and a sink that are written in Python by the Java objects that stand for them
(…PythonMicroBatchStream@73249f90), and lets them say nothing about it. The offsets name the topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_OF_PYTHON: Final = "org.apache.spark.sql.execution.datasources.v2.python."


def described(progress: StreamingQueryProgress) -> dict[str, Any]:
    """The same progress, as a dictionary of what it is in JSON."""
    found: dict[str, Any] = json.loads(progress.json)
    for source in found["sources"]:
        if source["description"].startswith(_OF_PYTHON):
            source["description"] = f"ottla[{', '.join(_topics(source))}]"
    if found["sink"]["description"].startswith(_OF_PYTHON):
        found["sink"]["description"] = "ottla"
    return found


def _topics(source: Mapping[str, Any]) -> list[str]:
    reached = source["endOffset"]
    offsets = json.loads(reached) if isinstance(reached, str) else reached
    return sorted(offsets) if isinstance(offsets, dict) else []
