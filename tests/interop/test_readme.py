"""What README.md tells a newcomer to type, as it is printed there; only the address is another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from interop_kit import toolchain

from ottla.testing import BrokerProcess

README = Path(__file__).resolve().parents[2] / "README.md"
PRINTED_ADDRESS = "127.0.0.1:9092"
TOPIC = "greetings"
TIMEOUT = 60  # seconds for one program


class Block(NamedTuple):
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found if each[0] in languages]


class Step(NamedTuple):
    """A command after a `$`, and the lines that are printed below it."""

    command: str
    output: str


def sessions() -> list[list[Step]]:
    """The blocks that show a shell."""
    shown = []
    for block in blocks(""):
        steps: list[Step] = []
        for line in block.text.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line.removeprefix("$ "), ""))
            elif steps:
                last = steps[-1]
                steps[-1] = last._replace(output=last.output + line + "\n")
        if steps:
            shown.append(steps)
    return shown


@pytest.fixture
def broker(fresh_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """With nothing in it, as after the first `make run`."""
    return fresh_broker()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like that of a clone: `.venv/bin/ottla` is there."""
    programs = tmp_path / "clone" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ottla").symlink_to(Path(sys.executable).with_name("ottla"))
    return tmp_path / "clone"


def run(command: list[str], folder: Path, broker: BrokerProcess) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OTTLA_SERVER": broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


def at(broker: BrokerProcess, text: str) -> str:
    """The text with the address of this broker."""
    return text.replace(PRINTED_ADDRESS, broker.bootstrap)


def greeted(folder: Path, broker: BrokerProcess) -> list[str]:
    return run([".venv/bin/ottla", "consume", TOPIC], folder, broker).splitlines()


def greetings_in(program: str) -> list[str]:
    """The texts that a program is said to send."""
    found = re.findall(r'"(hello from [^"]+)"', program)
    assert found, program
    return found


def test_the_shell(broker: BrokerProcess, folder: Path) -> None:
    toolchain.tool("kcat")
    shown = sessions()
    assert [step.command.split()[0] for steps in shown for step in steps].count("kcat") >= 1
    printed = 0
    for step in (step for steps in shown for step in steps):
        said = run(["bash", "-c", f"set -o pipefail; {at(broker, step.command)}"], folder, broker)
        if step.output:
            assert said == step.output
            printed += 1
        elif "consume" in step.command or " -C" in step.command:
            assert said.splitlines() == greeted(folder, broker)
    assert printed
    assert greeted(folder, broker) == ["hello", "from kcat"]


def test_python(broker: BrokerProcess, folder: Path) -> None:
    programs = blocks("python")
    assert programs
    expected: list[str] = []
    for block in programs:
        run([sys.executable, "-c", at(broker, block.text)], folder, broker)
        expected += greetings_in(block.text)
    assert set(expected) <= set(greeted(folder, broker))


def test_java(broker: BrokerProcess, folder: Path) -> None:
    [block] = blocks("java")
    [name] = re.findall(r"public class (\w+)", block.text)
    source = folder / f"{name}.java"
    source.write_text(at(broker, block.text))
    client = f"org.apache.kafka:kafka-clients:{toolchain.KAFKA_VERSION}"
    libraries = toolchain.jars("java-client-libs", [client, toolchain.GSON])
    # Java compiles a single file by itself.
    command = [toolchain.tool("java"), *toolchain.JAVA_OPTIONS, "-cp", f"{libraries}/*"]
    said = run([*command, str(source)], folder, broker)
    assert said.strip() == f"{TOPIC}-0@0"
    assert greeted(folder, broker) == greetings_in(block.text)
