"""Who may ask the console, and what they may send."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest
from console_kit.process import ConsoleProcess

from ottla.console.guard import LARGEST_BODY
from ottla.testing import BrokerProcess

TOKEN = "0123456789abcdef-token"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:99", 200),
        ("[::1]:8080", 200),
        ("attacker.example", 403),
        ("attacker.example:8080", 403),
        ("localhost.attacker.example", 403),
        ("127.0.0.1.attacker.example", 403),
        ("localhost:x", 400),
        ("user@localhost", 400),
        ("", 400),
    ],
)
def test_names_that_point_here_from_elsewhere(
    console: ConsoleProcess, host: str, status: int
) -> None:
    assert console.ask("GET", "/api/topics", headers={"Host": host}).status == status


def test_a_request_without_a_host(console: ConsoleProcess) -> None:
    with socket.create_connection((console.host, console.port), timeout=20) as connection:
        connection.sendall(b"GET /api/topics HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://{own}", True),
        ("https://{own}", True),
        ("http://attacker.example", False),
        ("http://127.0.0.1:1", False),
        ("http://localhost", False),
        ("null", False),
        ("", False),
        ("file://", False),
    ],
)
def test_pages_of_other_sites(
    console: ConsoleProcess, topic: str, origin: str, allowed: bool
) -> None:
    origin = origin.format(own=console.address)
    path = f"/api/topics/{topic}/deletions"
    body = json.dumps({"offsets": {"0": [0]}})
    answer = console.ask("POST", path, body, {**JSON, "Origin": origin})
    assert answer.status == (200 if allowed else 403)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("site", "status"),
    [("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403)],
)
def test_images_and_links_in_pages_of_other_sites(
    console: ConsoleProcess, site: str, status: int
) -> None:
    """They come without an Origin."""
    assert console.ask("GET", "/api/topics", headers={"Sec-Fetch-Site": site}).status == status


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_what_a_form_of_another_site_could_send(
    console: ConsoleProcess, topic: str, kind: str
) -> None:
    body = json.dumps({"offsets": {"0": [0]}})
    path = f"/api/topics/{topic}/deletions"
    assert console.ask("POST", path, body, {"Content-Type": kind}).status == 415
    page = console.get(f"/api/topics/{topic}/partitions/0/records?limit=1").body
    assert [each["offset"] for each in page["records"]] == [0]


def test_no_preflight_is_answered(console: ConsoleProcess, topic: str) -> None:
    asked = {"Origin": "http://attacker.example", "Access-Control-Request-Method": "POST"}
    answer = console.ask("OPTIONS", f"/api/topics/{topic}/deletions", headers=asked)
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_large_bodies(console: ConsoleProcess, topic: str) -> None:
    path = f"/api/topics/{topic}/deletions"
    # One that says so is refused before it comes ...
    answer = console.ask("POST", path, None, {**JSON, "Content-Length": str(LARGEST_BODY + 1)})
    assert answer.status == 413
    # ... and one that does not, when it has become too large.
    connection = http.client.HTTPConnection(console.host, console.port, timeout=60)
    piece = b"[" + b" " * 65_535
    try:
        connection.request("POST", path, (piece for _ in range(LARGEST_BODY // 65_536 + 1)), JSON)
        status = connection.getresponse().status
    except BrokenPipeError:
        status = 413  # the answer was there before the whole of it was sent
    finally:
        connection.close()
    assert status == 413


def test_answers_are_not_for_browsers_to_keep_or_run(console: ConsoleProcess) -> None:
    headers = console.get("/api/health").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"] == "application/json"
    assert "server" not in headers


def test_token(broker: BrokerProcess, tmp_path: Path, topic: str) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    arguments = ["--token-file", str(file), "--allow-host", "console.example"]
    with ConsoleProcess(
        tmp_path / "log", broker.bootstrap, arguments=arguments, token=TOKEN
    ) as console:
        assert console.get("/api/topics").status == 200
        assert console.get("/api/topics", Host="console.example").status == 200
        assert console.get("/api/topics", Host="other.example").status == 403
        for given in ("", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x"):
            answer = console.ask("GET", "/api/topics", headers={"Authorization": given})
            assert answer.status == 401, given
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in json.dumps(answer.body)
        assert console.ask("GET", "/api/health").status == 401
        assert console.ask("GET", "/api/openapi.json").status == 401
        answer = console.ask(
            "POST", f"/api/topics/{topic}/deletions", json.dumps({"key": "a"}), JSON
        )
        assert answer.status == 401
        assert console.delete(topic, offsets={"0": [1]}).status == 200
        assert console.stop() == 0
        assert TOKEN not in console.log_text()
        # What was deleted is told, and by what is not: a key may be somebody's name.
        assert f"deleted: topic={topic} records=1" in console.log_text()
