"""`ottla.testing` has what users' tests need; crash models and faulty files are for Ottla's own."""

from __future__ import annotations

from pathlib import Path

import ottla.testing


def test_only_what_users_need_is_in_the_package() -> None:
    folder = Path(ottla.testing.__file__).parent
    found = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.py")}
    assert found == {
        "__init__",
        "broker_process",
        "cluster/__init__",
        "cluster/local",
        "cluster/state",
        "cluster/status",
        "guardian",
        "ports",
        "process_identity",
        "server_process",
        "zookeeper",
    }
    assert not list((folder.parent / "cluster").glob("faulty*"))
