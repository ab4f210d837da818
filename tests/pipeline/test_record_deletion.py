"""Deleting by a condition on Spark, and what Spark sees of deleted records."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline_kit.commands import run_command


def test_where(spark: SparkSession, broker: BrokerProcess, admin: Admin) -> None:
    topic = "deleted.by-condition"
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(100):
            value = {"customer": number % 10, "amount": number}
            producer.send(topic, json.dumps(value), partition=number % 2)

    def run(*words: str) -> str:
        return run_command(*words, server=broker.bootstrap).stdout

    command = ("record", "delete", topic, "--where", "customer = 4 AND amount < 50")
    assert "would delete 5 records" in run(*command, "--dry-run")
    answer = json.loads(run(*command, "--json"))
    assert answer == {"topic": topic, "deleted": 5, "partitions": {"0": 5}}
    assert "deleted 0 records" in run(*command)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    rows = spark.read.format("ottla").options(**options).load()
    values = [json.loads(row["value"]) for row in rows.select("value").collect()]
    assert len(values) == 95
    assert not [each for each in values if each["customer"] == 4 and each["amount"] < 50]
    # Up to the end, where nothing but deleted records is left.
    place = TopicPartition(topic, 0)
    end = admin.list_offsets({place: "latest"})[place].offset
    assert end is not None
    admin.delete_records_at({place: [range(40, 50)]}, skip_deleted=True)
    assert spark.read.format("ottla").options(**options).load().count() == 85
