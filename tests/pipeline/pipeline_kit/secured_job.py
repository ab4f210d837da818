"""A job over TLS and SASL whose tasks run in processes of their own: `python secured_job.py JSON`.

It reads a topic as a batch and as a stream, writes both to others, and then keeps in a folder all that
Spark shows of it: plans, every page of the UI, and what the UI's interface for programs says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MOST_PAGES = 200


@dataclass(frozen=True)
class SecuredJob:
    bootstrap: str
    topic: str
    batch_copy: str
    stream_copy: str
    folder: str  # for what is shown, and for checkpoints
    options: dict[str, str] = field(default_factory=dict)  # of the source and of the sink
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """What the job saw. What it and Spark print is kept in the folder."""
        folder = Path(self.folder)
        with (folder / "printed.log").open("wb") as printed:
            done = subprocess.run(
                [sys.executable, __file__, json.dumps(asdict(self))],
                cwd=folder,
                env={**os.environ, **environment},
                stdout=printed,
                stderr=printed,
                check=False,
            )
        assert done.returncode == 0, (folder / "printed.log").read_text()[-5000:]
        seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
        return seen


def place(_: int) -> str:
    return os.getcwd()


def main(job: SecuredJob) -> None:
    from ottla.pipeline import session

    folder = Path(job.folder)
    spark = session("local-cluster[2,1,1024]", name="secured-job", settings=job.settings)
    given = {"kafka.bootstrap.servers": job.bootstrap, **job.options}
    try:
        frame = spark.read.format("ottla").options(**given, subscribe=job.topic).load()
        rows = frame.select("partition", "offset", frame.value.cast("string")).collect()
        values = frame.select("value")
        values.write.format("ottla").options(**given, topic=job.batch_copy).mode("append").save()
        query = (
            spark.readStream.format("ottla")
            .options(**given, subscribe=job.topic, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("ottla")
            .options(**given, topic=job.stream_copy, checkpointLocation=str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        plans = [
            frame._jdf.queryExecution().toString(),
            frame._jdf.queryExecution().explainString(
                spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")  # type: ignore[union-attr]
            ),
            query._jsq.explainInternal(True),
            json.dumps([json.loads(each.json) for each in query.recentProgress]),
        ]
        (folder / "plans.txt").write_text("\n".join(plans))
        places = spark.sparkContext.parallelize(range(2), 2).map(place).collect()
        pages = keep_pages(str(spark.sparkContext.uiWebUrl), folder / "pages")
        seen = {"rows": sorted(map(list, rows)), "places": places, "pages": pages}
    finally:
        spark.stop()
    (folder / "seen.json").write_text(json.dumps(seen))


def keep_pages(address: str, folder: Path) -> list[str]:
    """Every page that the UI's pages lead to, and what programs are told."""
    folder.mkdir()
    program = f"{address}/api/v1/applications"
    identity = json.loads(_page(program))[0]["id"]
    wanted = [
        address,
        *(f"{program}/{identity}/{each}" for each in ("environment", "jobs", "stages")),
        f"{program}/{identity}/sql?details=true&planDescription=true&length=1000",
    ]
    kept: list[str] = []
    for number, each in enumerate(wanted):
        if number >= MOST_PAGES:
            break
        text = _page(each)
        (folder / f"{number}.html").write_text(f"{each}\n{text}")
        kept.append(each.removeprefix(address))
        for link in re.findall(r'href="([^"#]+)"', text):
            absolute = urllib.parse.urljoin(each, link.replace("&amp;", "&"))
            is_page = absolute.startswith(address) and "/static/" not in absolute
            if is_page and "kill" not in absolute and absolute not in wanted:
                wanted.append(absolute)
    return kept


def _page(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"


if __name__ == "__main__":
    main(SecuredJob(**json.loads(sys.argv[1])))
