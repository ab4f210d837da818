"""`ottla.testing` has what users' tests need; crash models and faulty files are for Ottla's own."""

from __future__ import annotations

from pathlib import Path

import ottla.testing


def test_only_what_users_need_is_in_the_package() -> None:
    folder = Path(ottla.testing.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} == {
        "__init__",
        "broker_process",
        "cluster",
        "guardian",
        "ports",
        "process_identity",
        "server_process",
        "zookeeper",
    }
    assert not list((folder.parent / "cluster").glob("faulty*"))
