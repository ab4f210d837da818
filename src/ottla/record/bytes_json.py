"""Bytes in JSON: as text where they are UTF-8, in base64 under another name where not."""

from __future__ import annotations

import base64


def bytes_to_json(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
