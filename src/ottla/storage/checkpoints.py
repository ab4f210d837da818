"""The small files beside the segments: offset checkpoints, a partition's topic id, and what a data
folder says of itself. All in Kafka's formats.

Each is replaced as a whole (`Files.replace_file`), so after a crash it holds the old content or the
new one. A file that holds neither raises CorruptCheckpoint, with one exception, Kafka's: a
checkpoint of no bytes at all is one without entries (Kafka creates them so).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from ottla.logfiles import checkpoint
from ottla.logfiles.checkpoint import InvalidCheckpoint, parse_offsets
from ottla.logfiles.names import FOLDER_LOCK
from ottla.storage.errors import CorruptCheckpoint, FolderLocked
from ottla.storage.files import OS_FILES, READ_WRITE_CREATE, Files

_VERSION = 0


# Checkpoints of offsets and epochs: logfiles/checkpoint.py has the format.


def format_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, len(entries), *entries)).encode()


def parse_checkpoint(data: bytes, path: str, fields: int) -> Iterator[list[str]]:
    """The fields of each entry, of which there are `fields`; CorruptCheckpoint at the first
    flaw."""
    try:
        yield from checkpoint.parse_checkpoint(data, fields)
    except InvalidCheckpoint as error:
        raise CorruptCheckpoint(path, error.reason) from None


def parse_number(text: str, path: str) -> int:
    """A number from 0 to 2^63 - 1, in plain digits."""
    try:
        return checkpoint.parse_number(text)
    except InvalidCheckpoint as error:
        raise CorruptCheckpoint(path, error.reason) from None


def read_offsets(path: str, files: Files = OS_FILES) -> dict[tuple[str, int], int]:
    """(topic, partition) → offset; nothing if there is no file."""
    try:
        return parse_offsets(files.read_file(path))
    except FileNotFoundError:
        return {}
    except InvalidCheckpoint as error:
        raise CorruptCheckpoint(path, error.reason) from None


def write_offsets(
    path: str, offsets: Mapping[tuple[str, int], int], files: Files = OS_FILES
) -> None:
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    files.replace_file(path, format_checkpoint(lines))


# partition.metadata: `version: 0`, newline, `topic_id: ` and the id in Kafka's base 64; no last
# newline.


def format_topic_id(topic_id: bytes) -> str:
    """22 letters: base 64 for URLs, without padding."""
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def read_partition_metadata(path: str, files: Files = OS_FILES) -> bytes | None:
    """The topic id; None if there is no file."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return None
    found: dict[str, str] = {}
    for line in _text(data, path).splitlines():
        name, separator, value = line.partition(": ")
        if not separator or name in found:
            raise CorruptCheckpoint(path, f"the line {line!r} makes no sense")
        found[name] = value
    if found.get("version") != str(_VERSION):
        raise CorruptCheckpoint(path, f"version {found.get('version')!r} is unknown")
    letters = found.get("topic_id", "")
    try:
        topic_id = base64.b64decode(letters + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        topic_id = b""
    if len(topic_id) != 16 or format_topic_id(topic_id) != letters:
        raise CorruptCheckpoint(path, f"{letters!r} is no topic id")
    if topic_id == bytes(16):
        raise CorruptCheckpoint(path, "the topic id is zero")
    return topic_id


def write_partition_metadata(
    path: str, topic_id: bytes, files: Files = OS_FILES, sync: bool = True
) -> None:
    """Without `sync` the caller makes file and name last: many partitions made at once share one
    sync of the file system."""
    data = f"version: {_VERSION}\ntopic_id: {format_topic_id(topic_id)}".encode()
    if sync:
        files.replace_file(path, data)
        return
    fd = files.open(path, READ_WRITE_CREATE)
    try:
        files.truncate(fd, 0)
        files.write_all(fd, data, 0)
    finally:
        files.close(fd)


# The marker of a clean shutdown: JSON with the broker's epoch. Removed at start.


def read_clean_shutdown(path: str, files: Files = OS_FILES) -> int | None:
    """The broker epoch of a clean shutdown, -1 if the marker does not say; None if there is none. A
    marker that cannot be read still tells that the logs were closed (that of an old Kafka is
    empty)."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return None
    try:
        marker = json.loads(data)
    except ValueError:
        return -1
    epoch = marker.get("brokerEpoch") if isinstance(marker, dict) else None
    return epoch if type(epoch) is int else -1


def write_clean_shutdown(path: str, broker_epoch: int, files: Files = OS_FILES) -> None:
    marker = {"version": _VERSION, "brokerEpoch": broker_epoch}
    files.replace_file(path, json.dumps(marker, separators=(",", ":")).encode())


# meta.properties: `name=value` lines and comments. Kafka's names are version, cluster.id, node.id
# and directory.id, none of whose values needs the escapes of Java's property files.


def read_folder_identity(path: str, files: Files = OS_FILES) -> dict[str, str] | None:
    """The contents of meta.properties; None if there is no file: the folder is new."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return None
    properties: dict[str, str] = {}
    for raw in _text(data, path).splitlines():
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        name = name.strip()
        if not separator or not name or name in properties or "\\" in line:
            raise CorruptCheckpoint(path, f"the line {line!r} makes no sense")
        properties[name] = value.strip()
    if not properties:
        raise CorruptCheckpoint(path, "it is empty")
    return properties


def write_folder_identity(
    path: str, properties: Mapping[str, str], files: Files = OS_FILES
) -> None:
    for name, value in properties.items():
        if (
            re.search(r"[\s\\=:#!]", name)
            or re.search(r"[\r\n\\]", value)
            or value != value.strip()
        ):
            raise ValueError(f"{name}={value!r} needs escapes")
    files.replace_file(path, "".join(f"{n}={v}\n" for n, v in properties.items()).encode())


def lock_folder(folder: str, files: Files = OS_FILES) -> int:
    """Keeps other brokers out of a data folder until the descriptor is closed (`files.close`) or
    the process ends; FolderLocked if another has it."""
    try:
        return files.lock(os.path.join(folder, FOLDER_LOCK))
    except BlockingIOError:
        raise FolderLocked(folder) from None


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "it is no text") from None
