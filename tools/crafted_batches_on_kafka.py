"""Ask a running Apache Kafka what it makes of batches that no honest producer sends.

    python tools/crafted_batches_on_kafka.py HOST:PORT

Sends every batch of tests/record/record_kit/crafted_batches.py over the wire and writes the answers to
tests/record/produced_batches_by_kafka.jsonl, which the tests hold Ottla to: the error's name, the
records that are named as bad, and for a batch that is taken what of it is stored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "record"), str(TESTS / "server")]

from record_kit.crafted_batches import TOPICS, build, crafted  # noqa: E402
from record_kit.kafkas_answers import ANSWERS  # noqa: E402
from server_kit.broker_thread import BrokerElsewhere  # noqa: E402
from server_kit.calls import create_topic, now_ms  # noqa: E402
from server_kit.crafted import ask  # noqa: E402


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    lines: list[dict[str, Any]] = []
    with BrokerElsewhere(host, int(port)).wire() as wire:
        topics = {kind: create_topic(wire, **settings) for kind, settings in TOPICS.items()}
        for name, codec, kind in crafted():
            now = now_ms()
            answer = ask(wire, topics[kind], build(name, codec, now), now)
            lines.append({"case": name, "codec": codec.name.lower(), "topic": kind, **answer})
    with ANSWERS.open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    refused = sum(line["error"] != "NONE" for line in lines)
    print(f"{len(lines)} batches, {refused} refused: {ANSWERS}")


if __name__ == "__main__":
    main()
