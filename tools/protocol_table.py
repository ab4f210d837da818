"""Writes docs/protocol.md: the APIs that the broker serves, from what the handlers declare.

python tools/protocol_table.py            writes the page
python tools/protocol_table.py --check    exit status 1 if the page is out of date
"""

from __future__ import annotations

import sys

import generated_page

from ottla.protocol.apis import api_name
from ottla.server import handlers

_INTRODUCTION = """\
# The protocol: keys and versions

What this broker answers, generated from the handlers by `python tools/protocol_table.py`. ApiVersions
tells clients the same. The behaviour of each API and what each version added stand at the head of its
module in `src/ottla/server/handlers/`.

An API of Kafka's that is not in the table is refused with UNSUPPORTED_VERSION in its own response: as
the error of the whole, or of each thing that the request names where the response has no other place for
it. (Apache Kafka closes the connection on APIs that are not enabled.) What nobody knows, a key or a
version, closes the connection with a line in the log.

| key | API | versions | flexible from |
|---:|---|---|---|
"""


def page() -> str:
    rows = []
    for declared in handlers.load():
        lowest, highest = declared.versions
        flexible = declared.request.flexible_since
        since = f"v{flexible}" if flexible <= highest else "never"
        rows.append(
            f"| {int(declared.key)} | {api_name(declared.key)} | {lowest}–{highest} | {since} |"
        )
    return _INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(generated_page.main("protocol.md", page, __doc__))
