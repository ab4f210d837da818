"""A Spark driver of its own, to be killed: writes numbers to a topic until a batch is done.

Arguments: bootstrap servers, topic, folder of the checkpoint, batch, the option `fault`.
Tasks may fail twice. SETTINGS in the environment are Spark's, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ottla.pipeline import session
from pipeline_kit.faults import FaultySource
from pipeline_kit.streams import Numbers, wait_for


def main(bootstrap: str, topic: str, checkpoint: str, batch: str, *faults: str) -> None:
    spark = session(
        settings={
            "spark.master": "local[2,3]",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **json.loads(os.environ.get("SETTINGS", "{}")),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FaultySource)
    numbers = Numbers(spark, bootstrap, topic, Path(checkpoint))
    for fault in faults:
        query = numbers.start({"fault": fault})
        wait_for(query, int(batch))
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
