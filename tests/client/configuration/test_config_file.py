"""Options of a client that come from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.configuration.clients import CONFIG_VARIABLE, ConsumerSettings, read_settings
from ottla.client.errors import ConfigurationError
from ottla.wire.sasl import Plain


def read(**options: Any) -> ConsumerSettings:
    return read_settings(ConsumerSettings, "h:1", options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(
        "# secrets\nbootstrap.servers=elsewhere:1\nsecurity.protocol = SASL_PLAINTEXT\n"
        "sasl.mechanism: PLAIN\nsasl.username=u\nsasl.password=p=\\\n  q\nfetch.min.bytes=7\n"
    )
    return path


def test_a_file_has_what_is_not_said(file: Path) -> None:
    settings = read(config_file=str(file))
    assert settings.security.sasl == Plain("u", "p=q")
    assert settings.fetch_min_bytes == 7
    # Which servers are meant is said where the client is made.
    assert settings.servers == read().servers
    assert read(config_file=str(file), fetch_min_bytes=9).fetch_min_bytes == 9


def test_the_environment_names_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert read().security.sasl == Plain("u", "p=q")
    other = file.with_name("other.properties")
    other.write_text("fetch.min.bytes=8\n")
    settings = read(config_file=str(other))
    assert (settings.security.sasl, settings.fetch_min_bytes) == (None, 8)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.properties"
    with pytest.raises(ConfigurationError, match=r"none\.properties cannot be read: No such file"):
        read(config_file=str(missing))
