"""Finds and builds what the programs of other languages need, once for each machine.

Everything lands in ${XDG_CACHE_HOME:-~/.cache}/ottla-interop, in a folder whose name holds a digest
of what it was built from, so a changed source or version builds anew and an unchanged one costs
nothing. A folder is complete once its `complete` file is there; a lock file keeps the workers of
pytest-xdist from building the same thing twice.

A tool that is missing skips the test with a reason; where it must not be missing (CI=true, or
REQUIRE_INTEROP=1) it fails it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INTEROP = Path(__file__).resolve().parent.parent
BUILD_TIMEOUT = 480

KAFKA_VERSION = "4.3.1"
OLD_KAFKA_VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.0.1", "0.10.2.2")
GSON = "com.google.code.gson:gson:2.11.0"
MAVEN_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
NEEDED_GO = (1, 26)  # as go/go.mod says
GO_VERSION = "1.26.8"
NEEDED_NODE = (22, 22, 0)
NODE_VERSION = "24.21.0"

# Small, quick to start: these programs run for seconds.
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xmx256m",
    "-Djava.net.preferIPv4Stack=true",
)


def required() -> bool:
    return os.environ.get("CI") == "true" or os.environ.get("REQUIRE_INTEROP") == "1"


def missing(reason: str) -> None:
    """Skip, or fail where nothing may be missing."""
    if required():
        pytest.fail(f"{reason} (and CI or REQUIRE_INTEROP says that it must be there)")
    pytest.skip(reason)


def tool(name: str) -> str:
    """The path of a program, or a skip with the reason."""
    # rsyslogd lives where only root's PATH looks.
    path = os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/local/go/bin:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    if found is None:
        missing(f"{name} is not installed")
        raise AssertionError("unreachable")
    return found


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "ottla-interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name: str, ingredients: list[str | Path], build: Callable[[Path], None]) -> Path:
    """The folder in which `build` was run once for these ingredients (texts, files, folders)."""
    folder = cache_folder() / f"{name}-{digest(ingredients)}"
    if (folder / "complete").exists():
        return folder
    with locked(name):
        if (folder / "complete").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(folder)
        (folder / "complete").touch()
    return folder


def digest(ingredients: list[str | Path]) -> str:
    total = hashlib.sha256()
    for ingredient in ingredients:
        if isinstance(ingredient, str):
            total.update(ingredient.encode() + b"\0")
            continue
        files = sorted(ingredient.rglob("*")) if ingredient.is_dir() else [ingredient]
        for file in files:
            if file.is_file():
                total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def run_build(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """A build step. What it says is shown when it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace")[-4000:]
        pytest.fail(f"{' '.join(command)} failed:\n{said}")


# Java


POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ottla.interop</groupId><artifactId>fetch</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def jars(name: str, artifacts: list[str]) -> Path:
    """A folder with these Maven artifacts (group:artifact:version) and all that they need."""

    def build(folder: Path) -> None:
        dependencies = ""
        for artifact in artifacts:
            group, identifier, version = artifact.split(":")
            dependencies += (
                f"<dependency><groupId>{group}</groupId><artifactId>{identifier}</artifactId>"
                f"<version>{version}</version></dependency>"
            )
        (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
        goal = f"{MAVEN_DEPENDENCY_PLUGIN}:copy-dependencies"
        # One Maven at a time: its local repository is not made for two.
        with locked("maven"):
            run_build(
                [
                    tool("mvn"),
                    "--batch-mode",
                    "--quiet",
                    goal,
                    f"-DoutputDirectory={folder / 'libs'}",
                ],
                folder,
            )

    tool("java")
    tool("mvn")
    return built(name, [*artifacts, MAVEN_DEPENDENCY_PLUGIN], build) / "libs"


def java_program(name: str, sources: list[Path], main: str, artifacts: list[str]) -> list[str]:
    """The command that runs a Java program compiled against these artifacts."""
    libraries = jars(f"{name}-libs", artifacts)

    def build(folder: Path) -> None:
        run_build(
            [tool("javac"), "-nowarn", "-cp", f"{libraries}/*", "-d", str(folder)]
            + [str(source) for source in sources],
            folder,
        )

    tool("javac")
    classes = built(name, [*artifacts, *sources], build)
    return [tool("java"), *JAVA_OPTIONS, "-cp", f"{classes}:{libraries}/*", main]


def kafka_tools() -> list[str]:
    """The command before the class name of one of Kafka's own command-line tools."""
    artifacts = ["org.apache.kafka:kafka_2.13", "org.apache.kafka:kafka-tools"]
    libraries = jars("kafka-tools", [f"{artifact}:{KAFKA_VERSION}" for artifact in artifacts])
    command = [tool("java"), *JAVA_OPTIONS, "-cp", f"{libraries}/*"]

    def build(folder: Path) -> None:
        # A run that finds no broker, for the classes that it loads: with an archive of them a tool
        # starts in half the time. Without it (another kind of Java) they start all the same.
        settings = folder / "client.properties"
        settings.write_text("default.api.timeout.ms=500\nrequest.timeout.ms=400\n")
        archive = f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"
        nobody = ["--bootstrap-server", "127.0.0.1:1", "--command-config", str(settings)]
        name = "org.apache.kafka.tools.TopicCommand"
        subprocess.run(
            [command[0], archive, *command[1:], name, *nobody, "--list"],
            capture_output=True,
            timeout=120,
            check=False,
        )

    version = subprocess.run([command[0], "-version"], capture_output=True, text=True, check=True)
    folder = built("kafka-tools-classes", [version.stderr, str(libraries)], build)
    return [command[0], f"-XX:SharedArchiveFile={folder / 'classes.jsa'}", *command[1:]]


# Go


def go() -> str:
    """The path of a go command that is new enough.

    An older one (Debian's, say) fetches a new one: Go's own distributions are modules too, and what
    comes is checked like every module.
    """
    found = tool("go")
    said = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    numbers = re.match(r"go(\d+)\.(\d+)", said.stdout)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) >= NEEDED_GO:
        return found
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    module = f"golang.org/toolchain@v0.0.1-go{GO_VERSION}.{platform.system().lower()}-{machine}"

    def build(folder: Path) -> None:
        where = {"GOMODCACHE": str(folder), "GOFLAGS": "-modcacherw"}
        run_build([found, "mod", "download", module], folder, where)
        for programs in ("bin", "pkg/tool"):
            for file in (folder / module / programs).rglob("*"):
                file.chmod(0o755)  # modules hold no modes

    return str(built("go-toolchain", [module], build) / module / "bin" / "go")


def go_suite(module: str, package: str) -> tuple[str, Path]:
    """The go command, and a folder with the sources of a package of a module that go/go.mod names.

    A copy: tests may write beside their sources, and have dependencies of their own.
    """
    command = go()
    source = INTEROP / "go"

    def build(folder: Path) -> None:
        run_build([command, "mod", "download", module], source)
        asked = [command, "list", "-m", "-f", "{{.Dir}}", module]
        found = subprocess.run(asked, cwd=source, capture_output=True, text=True, check=True)
        shutil.copytree(found.stdout.strip(), folder / "module")
        for path in [folder / "module", *(folder / "module").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        run_build([command, "mod", "download"], folder / "module")

    folder = built(f"go-suite-{Path(module).name}", [source / "go.mod", module], build)
    return command, folder / "module" / package


def go_program(name: str) -> list[str]:
    """The command that runs tests/interop/go/<name>; the module pins the versions."""
    source = INTEROP / "go"
    command = go()

    def build(folder: Path) -> None:
        run_build(
            [command, "build", "-trimpath", "-o", str(folder / name), f"./{name}"],
            source,
            # Not in the tree: what Go writes goes to its own cache.
            {"GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"},
        )

    return [str(built(f"go-{name}", [source], build) / name)]


# Node


def node_program(name: str) -> list[str]:
    """The command that runs tests/interop/node/<name> with the packages of package.json.

    @platformatic/kafka wants a newer Node than Debian has: then Node itself comes from npm too.
    """
    source = INTEROP / "node"
    runtime = None if system_node_will_do() else node_package()

    def build(folder: Path) -> None:
        for file in source.iterdir():
            shutil.copy(file, folder)
        npm = [tool("npm"), "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        run_build([*npm, "ci", "--ignore-scripts"], folder)
        if runtime is not None:
            extra = ["--no-save", "--no-package-lock", "--ignore-scripts", runtime]
            run_build([*npm, "install", *extra], folder)

    tool("npm")
    folder = built("node", [runtime or "system", source], build)
    if runtime is None:
        return [tool("node"), str(folder / name)]
    binary = folder / "node_modules" / runtime.split("@")[0] / "bin" / "node"
    return [str(binary), str(folder / name)]


def system_node_will_do() -> bool:
    said = subprocess.run([tool("node"), "--version"], capture_output=True, text=True, check=True)
    version = tuple(int(part) for part in said.stdout.strip().lstrip("v").split("."))
    return version >= NEEDED_NODE


def node_package() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        missing(f"Node {'.'.join(map(str, NEEDED_NODE))} or later is not installed")
    return f"node-linux-{machine}@{NODE_VERSION}"


# PHP


def php_program() -> list[str]:
    """The command that runs tests/interop/php/driver.php over Debian's librdkafka."""
    php = tool("php")
    check = subprocess.run([php, "-m"], capture_output=True, text=True, check=True)
    if "FFI" not in check.stdout.split():
        missing("php has no FFI extension")
    options = ["-d", "ffi.enable=true", "-d", "memory_limit=512M", "-d", "display_errors=stderr"]
    return [php, *options, str(INTEROP / "php" / "driver.php")]
