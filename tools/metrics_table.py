"""Writes docs/metrics.md: what a broker tells of itself, from the table in the code.

python tools/metrics_table.py            writes the page
python tools/metrics_table.py --check    exit status 1 if the page is out of date
"""

from __future__ import annotations

import sys

import generated_page

from ottla.server.observability.metrics import FAMILIES, TIMINGS_HELP, TIMINGS_NAME

_INTRODUCTION = """\
# Metrics

A broker that is told where to serve them tells how it is, in the format that Prometheus reads:

    ottla serve --set metrics.listener=127.0.0.1:9404
    curl http://127.0.0.1:9404/metrics

`http://127.0.0.1:9404/healthz` answers as long as the broker's loop turns, for probes. Neither asks who
is asking: listen where only those can reach it who may know the names of topics and groups.

A partition that nobody has used since the start is asleep, and has no samples until somebody does.
Values are taken when they are asked for; the broker itself only counts.

What to look at first at 3 a.m.: `ottla_partition_offline` (there should be none), in a cluster also
`ottla_leaderless_partitions`, `ottla_under_min_isr_partitions` and `ottla_unclean_elections_total`;
`ottla_group_lag`, a `ottla_partition_last_stable_offset` that stands still, `ottla_unflushed_bytes`, and
`rate` of `process_cpu_seconds_total`: near 1 the loop is what limits.

What Kafka's users look for:

| Kafka's | here |
|---|---|
| `UnderReplicatedPartitions` | `ottla_under_replicated_partitions` |
| `UnderMinIsrPartitionCount` | `ottla_under_min_isr_partitions` |
| `OfflinePartitionsCount` | `ottla_leaderless_partitions` |
| `ActiveControllerCount` | `ottla_active_controller` |
| `UncleanLeaderElectionsPerSec` | the rate of `ottla_unclean_elections_total` |
| `IsrShrinksPerSec` | the rate of `ottla_isr_shrinks_total` |
| `IsrExpandsPerSec` | the rate of `ottla_isr_expands_total` |

What the controller tells is told by the broker that holds the office at the time: add the brokers up.

| metric | kind | meaning |
|---|---|---|
"""


def page() -> str:
    rows = [(family.name, family.kind, family.help) for family in FAMILIES]
    rows.append((TIMINGS_NAME, "histogram", TIMINGS_HELP))
    return _INTRODUCTION + "".join(
        f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in rows
    )


if __name__ == "__main__":
    sys.exit(generated_page.main("metrics.md", page, __doc__))
