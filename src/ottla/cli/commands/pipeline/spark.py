"""`ottla spark`: the Spark that `ottla sql` keeps ready."""

from __future__ import annotations

from ottla.cli.options import help_group
from ottla.cli.output import plural, write_line

app = help_group("The Spark that `ottla sql` keeps ready between queries.")


@app.command()
def stop() -> None:
    """End it now; by itself it ends after ten minutes without a query."""
    from ottla.cli.sql.warm import stop_all

    count = stop_all()
    write_line(f"{plural(count, 'server')} stopped" if count else "there is none")
