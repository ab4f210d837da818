"""Certificates for tests, made by openssl: an authority, a broker's and a client's, in all formats."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "changeit"


def _openssl(folder: Path, *words: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@dataclass(frozen=True)
class Certificates:
    """A folder with ca.pem, server.p12, client.pem, client.key, client.p12, trust.p12, …"""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def make_certificates(folder: Path) -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    for authority in ("ca", "other-ca"):
        _openssl(
            folder,
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"),
            *("-subj", f"/CN=Ottla test {authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.pem"),
        )
    # The broker's certificate is for localhost: 127.0.0.1 is a host that it is not for.
    _signed(folder, "server", "subjectAltName=DNS:localhost")
    _signed(folder, "client", "extendedKeyUsage=clientAuth")
    _openssl(
        folder,
        *("pkcs8", "-topk8", "-in", "client.key", "-out", "client-encrypted.key"),
        *("-passout", f"pass:{PASSWORD}"),
    )
    for name in ("server", "client"):
        _openssl(
            folder,
            *("pkcs12", "-export", "-in", f"{name}.pem", "-inkey", f"{name}.key"),
            *("-certfile", "ca.pem", "-out", f"{name}.p12", "-passout", f"pass:{PASSWORD}"),
        )
    _openssl(
        folder,
        *("pkcs12", "-export", "-nokeys", "-in", "ca.pem", "-out", "trust.p12"),
        # Java takes a certificate in such a store for trusted only if it is marked so.
        *("-jdktrust", "anyExtendedKeyUsage") if _marks_trust() else (),
        *("-passout", f"pass:{PASSWORD}"),
    )
    (folder / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    return Certificates(folder)


def _marks_trust() -> bool:
    shown = subprocess.run(
        ["openssl", "pkcs12", "-help"], capture_output=True, text=True, check=False
    )
    return "-jdktrust" in shown.stderr + shown.stdout


def _signed(folder: Path, name: str, extension: str) -> None:
    _openssl(
        folder,
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN=ottla-{name}"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
    )
    (folder / f"{name}.ext").write_text(extension + "\n")
    _openssl(
        folder,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
    )
