"""Writes docs/protocol.md: the APIs that the broker serves, from what the handlers declare.

python tools/protocol_table.py            writes the page
python tools/protocol_table.py --check    exit status 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.protocol.apis import api_name
from ottla.server import handlers

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"

_INTRODUCTION = """\
# The protocol: keys and versions

What this broker answers, generated from the handlers by `python tools/protocol_table.py`. ApiVersions
tells clients the same. The behaviour of each API and what each version added stand at the head of its
module in `src/ottla/server/handlers/`.

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


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
