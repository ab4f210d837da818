"""`ottla console` as a child process."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ottla.testing import free_port
from ottla.testing.server_process import ServerDied, ServerProcess, text_of


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


class ConsoleProcess(ServerProcess):
    kind = "console"
    died = ServerDied

    def __init__(
        self,
        log_path: Path,
        server: str,
        *,
        arguments: Sequence[str] = (),
        before: Sequence[str] = (),
        host: str = "127.0.0.1",
        token: str | None = None,
    ) -> None:
        super().__init__(host, free_port(host))
        self.log_path = log_path
        self.server = server
        self.token = token
        self.arguments = list(arguments)
        self.before = list(before)

    def command(self) -> list[str]:
        words = ["console", "--server", self.server, "--listen", self.address]
        return [sys.executable, "-m", "ottla.cli.main", *self.before, *words, *self.arguments]

    def spawn(self) -> None:
        self._launch(self.command(), self.log_path, {**os.environ, "PYTHONUNBUFFERED": "1"})

    def serves(self) -> bool:
        try:
            return self.get("/api/openapi.json").status in (200, 401)
        except OSError:
            return False

    def log_text(self) -> str:
        return text_of(self.log_path)

    # Asking

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, with these headers and no others but Host and Content-Length."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            got = connection.getresponse()
            text = got.read()
            known = {name.lower(): value for name, value in got.getheaders()}
            return Answer(got.status, json.loads(text) if text else None, known)
        finally:
            connection.close()

    def _usual(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={**self._usual(), **headers})

    def post(self, path: str, document: object, **headers: str) -> Answer:
        usual = {**self._usual(), "Content-Type": "application/json"}
        return self.ask("POST", path, json.dumps(document), {**usual, **headers})

    def delete(self, topic: str, **wanted: object) -> Answer:
        return self.post(f"/api/topics/{topic}/deletions", wanted)
