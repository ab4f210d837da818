"""A schema registry in a thread that answers as Confluent documents."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Registry(ThreadingHTTPServer):
    """Subjects, versions and ids, with Confluent's paths, bodies and error codes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subject_ids: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorization: str | None = None
        self.broken: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        match method, parts:
            case "GET", ["schemas", "ids", number]:
                if not 1 <= int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self.schemas[int(number) - 1]
            case "GET", ["subjects"]:
                return 200, sorted(self.subject_ids)
            case "GET", ["subjects", subject, "versions"] if subject in self.subject_ids:
                return 200, list(range(1, len(self.subject_ids[subject]) + 1))
            case "GET", ["subjects", subject, "versions", number] if subject in self.subject_ids:
                ids = self.subject_ids[subject]
                version = len(ids) if number == "latest" else int(number)
                found = {"subject": subject, "version": version, "id": ids[version - 1]}
                return 200, {**found, **self.schemas[ids[version - 1] - 1]}
            case "POST", ["subjects", subject, "versions"] if body is not None:
                if "schema" not in body or body["schema"] == "bad":
                    return 422, {"error_code": 42201, "message": "Invalid schema"}
                if body not in self.schemas:
                    self.schemas.append(body)
                schema_id = self.schemas.index(body) + 1
                ids = self.subject_ids.setdefault(subject, [])
                if schema_id not in ids:
                    ids.append(schema_id)
                return 200, {"id": schema_id}
            case "POST", ["subjects", subject] if subject in self.subject_ids:
                for version, schema_id in enumerate(self.subject_ids[subject], 1):
                    if self.schemas[schema_id - 1] == body:
                        found = {"subject": subject, "version": version, "id": schema_id}
                        return 200, {**found, **self.schemas[schema_id - 1]}
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "POST", ["compatibility", "subjects", _, "versions", "latest"]:
                return 200, {"is_compatible": body is not None and body["schema"] != "bad"}
        return 404, {"error_code": 40401, "message": "Subject not found."}


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body: dict[str, Any] | None) -> None:
        self.server.requests.append((self.command, self.path))
        expected = self.server.authorization
        if expected is not None and self.headers["Authorization"] != expected:
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, answer = self.server.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        if self.server.broken is not None:
            status, data = 200, self.server.broken
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()
    thread = threading.Thread(target=registry.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        registry.shutdown()
        thread.join()
        registry.server_close()
