"""What Apache Kafka answered to the crafted batches: see tools/crafted_batches_on_kafka.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ottla.record.compression.codecs import Codec

ANSWERS = Path(__file__).resolve().parents[1] / "produced_batches_by_kafka.jsonl"

Place = tuple[str, Codec, str]


def kafkas_answers() -> dict[Place, dict[str, Any]]:
    """By case, codec and kind of topic."""
    found: dict[Place, dict[str, Any]] = {}
    with ANSWERS.open() as file:
        for line in file:
            answer = json.loads(line)
            place = answer.pop("case"), Codec[answer.pop("codec").upper()], answer.pop("topic")
            found[place] = answer
    return found


# Where Ottla is stricter than Kafka, beyond the rules of `expected`. Most of these Kafka takes only
# where it writes the batch anew (topics that recompress), and Ottla refuses them there as everywhere.
STRICTER: Final = {
    "offset_deltas_all_zero": "INVALID_RECORD",
    "offset_deltas_from_one": "INVALID_RECORD",
    "offset_deltas_with_gap": "INVALID_RECORD",
    "offset_deltas_backwards": "INVALID_RECORD",
    "offset_delta_negative": "INVALID_RECORD",
    "offset_delta_largest": "INVALID_RECORD",
    "offset_delta_beyond_32_bits": "INVALID_RECORD",
    "key_length_minus_two": "INVALID_RECORD",
    "value_length_minus_two": "INVALID_RECORD",
    "header_value_length_minus_two": "INVALID_RECORD",
    "gzip_stream_with_garbage_after_it": "INVALID_RECORD",
    "gzip_stream_with_zeros_after_it": "INVALID_RECORD",
    "lz4_stream_with_garbage_after_it": "INVALID_RECORD",
    "lz4_stream_with_zeros_after_it": "INVALID_RECORD",
    "lz4_stream_twice": "INVALID_RECORD",
    "lz4_with_wrong_content_checksum": "INVALID_RECORD",
    # Fields that a producer has no business with. Kafka overwrites the first and keeps the others.
    "attribute_append_time": "INVALID_TIMESTAMP",
    "attribute_delete_horizon": "INVALID_RECORD",
    "producer_without_epoch": "INVALID_RECORD",
}


def expected(place: Place, kafka: dict[str, Any]) -> dict[str, Any]:
    """What Ottla has to answer where Kafka answers this.

    - Where Kafka stumbles (UNKNOWN_SERVER_ERROR), the batch is INVALID_RECORD. Clients give up on both.
    - What Kafka stores although it cannot be read is INVALID_RECORD.
    """
    name, _, topic = place
    error = kafka["error"]
    if name in STRICTER:
        return {"error": STRICTER[name]}
    if name == "negative_times" and topic in ("gzip", "uncompressed"):
        # Kafka stumbles over them only here, and takes them elsewhere.
        return {"error": "NONE"}
    if name == "header_value_past_the_record":
        # Kafka reads on in the next record, and complains of what it takes for its key.
        return {"error": "INVALID_RECORD"}
    if error == "UNKNOWN_SERVER_ERROR" or (error == "NONE" and "unreadable" in kafka["stored"]):
        return {"error": "INVALID_RECORD"}
    return kafka
