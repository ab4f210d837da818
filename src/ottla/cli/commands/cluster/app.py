"""`ottla cluster`: a cluster on this machine, of several brokers and a ZooKeeper, in one folder."""

from __future__ import annotations

from ottla.cli.commands.cluster import features, import_logs, moves, processes
from ottla.cli.options import help_group

app = help_group(
    "Run a cluster on this machine: several brokers and a ZooKeeper, all in one folder."
)

# In the order in which help shows them.
app.command()(processes.start)
app.command()(processes.stop)
app.command()(processes.kill)
app.command()(processes.add)
app.command()(processes.adopt)
app.command("import-logs")(import_logs.import_logs)
app.command()(moves.rebalance)
app.command()(moves.remove)
app.command()(processes.status)
app.command()(features.features)
app.command()(features.upgrade)
app.command()(features.downgrade)
