"""Frames and headers: what stands between the stream of bytes and a message, on both sides.

A frame is an int32 length and so many bytes. A request's bytes are a header (API key, version,
correlation id, client id; in flexible versions also tagged fields) and the message. A response's
are the correlation id (in flexible versions also tagged fields) and the message.

ApiVersions is the exception that every client relies on: its response header has no tagged fields
in any version, so that a client can read an answer of a broker that knows less than it asked for.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from ottla.protocol.apis import FLEXIBLE_SINCE, NEVER_FLEXIBLE, ApiKey
from ottla.protocol.message import Buffer, MalformedMessage, Message, UnencodableMessage
from ottla.protocol.wiretypes import skip_tags

# Records below this size are copied into their neighbours: cheaper than a piece of their own.
COPY_BELOW: Final = 4096

_BYTES_LIKE: Final = frozenset((bytes, bytearray, memoryview))
_unpack_request = Struct(">hhih").unpack_from
_pack_request = Struct(">ihhih").pack
_pack_response = Struct(">ii").pack
_pack_flexible_response = Struct(">iiB").pack
_unpack_correlation = Struct(">i").unpack_from
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)

# With plain integers as keys, which compare faster than members of an enumeration.
_flexible_since: Final = {int(key): version for key, version in FLEXIBLE_SINCE.items()}


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of the API has compact lengths and tagged fields."""
    return version >= _flexible_since.get(api_key, NEVER_FLEXIBLE)


def has_flexible_response_header(api_key: int, version: int) -> bool:
    """Whether responses of this version carry tagged fields in their header."""
    return api_key != _API_VERSIONS and version >= _flexible_since.get(api_key, NEVER_FLEXIBLE)


def parse_request_header(buffer: Buffer, at: int = 0) -> tuple[int, int, int, str | None, int]:
    """API key, version, correlation id, client id, and the position where the message starts.

    `buffer` is one frame without its length. The header of an API that nobody knows is read as one
    without tagged fields; all that can be done with such a request is to refuse it.
    """
    try:
        api_key, version, correlation_id, length = _unpack_request(buffer, at)
        at += 10
        if length >= 0:
            end = at + length
            if end > len(buffer):
                raise MalformedMessage("the client id is cut short")
            client_id = str(buffer[at:end], "utf-8")
            at = end
        elif length == -1:
            client_id = None
        else:
            raise MalformedMessage(f"a client id of length {length}")
        if version >= _flexible_since.get(api_key, NEVER_FLEXIBLE):
            tags = buffer[at]
            at += 1
            if tags:
                at = skip_tags(buffer, at, tags, len(buffer))
    except (struct_error, IndexError) as error:
        raise MalformedMessage("the request header is truncated") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage("the client id is not UTF-8") from error
    return api_key, version, correlation_id, client_id, at


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """A whole request frame, length included."""
    body = message.encode(version)
    client = b"" if client_id is None else client_id.encode()
    tags = b"\x00" if version >= message.flexible_since else b""
    try:
        header = _pack_request(
            10 + len(client) + len(tags) + len(body),
            message.api_key,
            version,
            correlation_id,
            -1 if client_id is None else len(client),
        )
    except struct_error as error:
        raise UnencodableMessage(f"a request header cannot be encoded: {error}") from error
    return b"".join((header, client, tags, body))


def parse_response_header(buffer: Buffer, at: int, flexible: bool) -> tuple[int, int]:
    """The correlation id, and the position where the message starts.

    `flexible` is what `has_flexible_response_header` says of the request that was sent.
    """
    try:
        (correlation_id,) = _unpack_correlation(buffer, at)
        at += 4
        if flexible:
            tags = buffer[at]
            at += 1
            if tags:
                at = skip_tags(buffer, at, tags, len(buffer))
    except (struct_error, IndexError) as error:
        raise MalformedMessage("the response header is truncated") from error
    return correlation_id, at


def encode_response(correlation_id: int, flexible: bool, body_parts: list[Any]) -> bytes:
    """A whole response frame, length included, from the pieces of an encoded message."""
    body = b"".join(body_parts)
    if flexible:
        return _pack_flexible_response(len(body) + 5, correlation_id, 0) + body
    return _pack_response(len(body) + 4, correlation_id) + body


def encode_response_parts(correlation_id: int, flexible: bool, body_parts: list[Any]) -> list[Any]:
    """A whole response frame as pieces to be sent in order, so that records are not copied.

    Neighbouring small pieces are joined. Large bytes-like pieces, and whatever else has a length
    (ranges of files), come out as the objects that went in.
    """
    size = sum(map(len, body_parts))
    if flexible:
        small: list[Any] = [_pack_flexible_response(size + 5, correlation_id, 0)]
    else:
        small = [_pack_response(size + 4, correlation_id)]
    pieces: list[Any] = []
    for part in body_parts:
        if type(part) in _BYTES_LIKE and len(part) < COPY_BELOW:
            small.append(part)
        else:
            if small:
                pieces.append(b"".join(small))
                small = []
            pieces.append(part)
    if small:
        pieces.append(b"".join(small))
    return pieces


def frame_response(message: Message, version: int, correlation_id: int) -> bytes:
    """A whole response frame, length included."""
    flexible = has_flexible_response_header(message.api_key, version)
    return encode_response(correlation_id, flexible, message.encode_parts(version))


def frame_response_parts(message: Message, version: int, correlation_id: int) -> list[Any]:
    """A whole response frame as pieces; see `encode_response_parts`."""
    flexible = has_flexible_response_header(message.api_key, version)
    return encode_response_parts(correlation_id, flexible, message.encode_parts(version))
