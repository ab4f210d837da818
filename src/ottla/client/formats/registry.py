"""A client for a schema registry that speaks Confluent's HTTP interface.

    registry = SchemaRegistry("https://registry.example:8081", username="me", password="…")
    registry.schema(7)                          # the schema with this id
    registry.latest("orders-value")             # the newest version of a subject
    registry.register("orders-value", schema)   # the id, new or known

A schema never changes under its id, so ids are kept for the life of the client; the newest version of a
subject is asked for each time. Several addresses may be given: the next one is asked when one does not
answer. Standard library only; safe to use from several threads.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from ottla.client.formats.errors import RegistryError
from ottla.wire.http import opener

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one imports: the name it uses, and the subject and version it is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry keeps it. `subject` and `version` are unknown if found by its id."""

    id: int
    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    subject: str = ""
    version: int = 0


class SchemaRegistry:
    """One registry, by its address (or several addresses, separated by commas)."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        bearer_token: str | None = None,
        ca_location: str | None = None,
        certificate_location: str | None = None,
        key_location: str | None = None,
        key_password: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        given = [part.strip() for part in url.split(",")] if isinstance(url, str) else list(url)
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json"}
        self._bases: list[str] = []
        for address in given:
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise RegistryError(f"not the address of a schema registry: {address!r}")
            if parts.username is not None and username is None:
                username, password = parts.username, parts.password
            place = parts.netloc.rpartition("@")[2]
            self._bases.append(urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")))
        if bearer_token is not None:
            self._headers["Authorization"] = f"Bearer {bearer_token}"
        elif username is not None:
            pair = f"{username}:{password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        context = ssl.create_default_context(cafile=ca_location)
        if certificate_location is not None:
            context.load_cert_chain(certificate_location, key_location, key_password)
        self._opener = opener(context)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}
        self._ids: dict[tuple[str, str, str, tuple[Reference, ...], bool], int] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema with this id."""
        with self._lock:
            known = self._by_id.get(schema_id)
        if known is None:
            answer = self._call("GET", f"/schemas/ids/{schema_id}")
            known = _registered(answer, schema_id)
            with self._lock:
                self._by_id[schema_id] = known
        return known

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject."""
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        answer = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        found = _registered(answer)
        with self._lock:
            self._by_id.setdefault(found.id, found)
        return found

    def subjects(self) -> list[str]:
        return list(self._call("GET", "/subjects"))

    def versions(self, subject: str) -> list[int]:
        return list(self._call("GET", f"/subjects/{quote(subject, safe='')}/versions"))

    def register(
        self,
        subject: str,
        schema: str,
        *,
        kind: str = "AVRO",
        references: Sequence[Reference] = (),
        normalize: bool = False,
    ) -> int:
        """Register a schema under a subject, or find it there; its id either way."""
        key = (subject, schema, kind, tuple(references), normalize)
        return self._id_of(key, "/subjects/{}/versions")

    def lookup(
        self,
        subject: str,
        schema: str,
        *,
        kind: str = "AVRO",
        references: Sequence[Reference] = (),
        normalize: bool = False,
    ) -> int:
        """The id of a schema that the subject has already; RegistryError if it has not."""
        key = (subject, schema, kind, tuple(references), normalize)
        return self._id_of(key, "/subjects/{}")

    def _id_of(self, key: tuple[str, str, str, tuple[Reference, ...], bool], path: str) -> int:
        with self._lock:
            known = self._ids.get(key)
        if known is not None:
            return known
        subject, schema, kind, references, normalize = key
        body: dict[str, Any] = {"schema": schema}
        if kind != "AVRO":
            body["schemaType"] = kind
        if references:
            body["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in references
            ]
        where = path.format(quote(subject, safe="")) + ("?normalize=true" if normalize else "")
        answer = self._call("POST", where, body)
        schema_id = int(answer["id"])
        with self._lock:
            self._ids[key] = schema_id
        return schema_id

    def compatible(self, subject: str, schema: str, *, kind: str = "AVRO") -> bool:
        """Whether a schema could follow the subject's newest version."""
        body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest"
        return bool(self._call("POST", path, body)["is_compatible"])

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = _CONTENT_TYPE
        failure = ""
        for base in self._bases:
            request = urllib.request.Request(base + path, data, headers, method=method)
            try:
                with self._opener.open(request, timeout=self._timeout) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code < 500 or base is self._bases[-1]:
                        raise _refusal(method, path, error) from error
                    failure = f"HTTP {error.code}"
            except (OSError, http.client.HTTPException) as error:
                failure = str(getattr(error, "reason", error)) or type(error).__name__
            except ValueError as error:
                failure = f"the answer is not JSON ({error}): is this a schema registry?"
        raise RegistryError(f"{method} {path}: no answer from {', '.join(self._bases)}: {failure}")


def _registered(answer: Any, schema_id: int | None = None) -> RegisteredSchema:
    try:
        return RegisteredSchema(
            id=int(answer["id"]) if schema_id is None else schema_id,
            text=str(answer["schema"]),
            kind=str(answer.get("schemaType") or "AVRO"),
            references=tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in answer.get("references") or ()
            ),
            subject=str(answer.get("subject") or ""),
            version=int(answer.get("version") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryError(f"the registry's answer has no schema in it: {answer!r}") from error


def _refusal(method: str, path: str, error: urllib.error.HTTPError) -> RegistryError:
    """The registry's own words, where it sent some."""
    code, message = 0, ""
    try:
        answer = json.load(error)
        code, message = int(answer["error_code"]), str(answer["message"])
    except (ValueError, KeyError, TypeError, OSError):
        message = error.reason if isinstance(error.reason, str) else ""
    return RegistryError(f"{method} {path}: HTTP {error.code}: {message}", error.code, code)
