"""Writes the modules of src/ottla/protocol/messages from Apache Kafka's own definitions.

    python tools/message_declarations.py DEFINITIONS                 what would change, as a diff
    python tools/message_declarations.py DEFINITIONS fetch produce   the same for these APIs alone
    python tools/message_declarations.py DEFINITIONS --write [API …] changes it

DEFINITIONS is a jar of kafka-clients, or a folder with its common/message/*.json. --older DEFINITIONS
names those of an earlier release: versions and fields that Kafka has dropped since are kept, as Ottla
serves older clients. The modules that are there were made with

    --older kafka-clients-3.9.2.jar kafka-clients-4.3.1.jar

A module keeps its docstring. APIs without a module get one only if they are named.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A field that Kafka's definitions do not have stands after a comment that begins so.
OWN_FIELD = re.compile(r"    # Ottla's own.*\n    .*\n")
MESSAGES = Path(__file__).resolve().parent.parent / "src" / "ottla" / "protocol" / "messages"
FOLDER_IN_JAR = "common/message/"
NEVER = 32767  # the end of a range that is still open
WIRE_TYPES = {
    "bool": "Bool",
    "int8": "Int8",
    "int16": "Int16",
    "uint16": "UInt16",
    "int32": "Int32",
    "uint32": "UInt32",
    "int64": "Int64",
    "float64": "Float64",
    "uuid": "Uuid",
    "string": "String",
    "bytes": "Bytes",
    "records": "Records",
}
Definition = dict[str, Any]


@dataclass(frozen=True)
class Versions:
    """A range of versions, both ends included; none where `first` is above `last`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        if text == "none":
            return cls(NEVER, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), NEVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    @property
    def is_empty(self) -> bool:
        return self.first > self.last

    def within(self, around: Versions) -> Versions:
        return Versions(max(self.first, around.first), min(self.last, around.last))


@dataclass
class Module:
    """The text of one module, as far as it has come: classes, and names that they need."""

    classes: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    declared: dict[str, str] = field(default_factory=dict)  # name of a class -> its body


def load(source: Path) -> dict[str, Definition]:
    """The definitions in a jar or a folder, by the name of the message."""
    if source.is_dir():
        texts = [path.read_text(encoding="utf-8") for path in sorted(source.glob("*.json"))]
    else:
        with zipfile.ZipFile(source) as jar:
            names = [name for name in jar.namelist() if name.startswith(FOLDER_IN_JAR)]
            texts = [jar.read(name).decode() for name in names if name.endswith(".json")]
    definitions = [json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M)) for text in texts]
    return {each["name"]: each for each in definitions}


def merged(newer: Definition, older: Definition | None) -> Definition:
    """A message or a field with what an older release still had of it."""
    if older is None:
        return newer
    both = dict(newer)
    if "validVersions" in newer:
        first = min(Versions.parse(each["validVersions"]).first for each in (older, newer))
        both["validVersions"] = f"{first}-{Versions.parse(newer['validVersions']).last}"
    elif Versions.parse(older["versions"]).first < Versions.parse(newer["versions"]).first:
        both["versions"] = older["versions"]
    for key in ("fields", "commonStructs"):
        if key in newer or key in older:
            both[key] = _merged_fields(newer.get(key, []), older.get(key, []))
    return both


def _was_released(request: Definition | None) -> bool:
    """Whether a version of this API was stable (requests say so): clients may still speak it."""
    if request is None:
        return False
    versions = Versions.parse(request["validVersions"])
    return versions.first < versions.last or not request.get("latestVersionUnstable")


def _merged_fields(newer: list[Definition], older: list[Definition]) -> list[Definition]:
    before = {each["name"]: each for each in older}
    fields = [merged(each, before.get(each["name"])) for each in newer]
    names = [each["name"] for each in fields]
    for at, each in enumerate(older):
        if each["name"] in names:
            continue
        # It takes the place after the one that it followed.
        place = names.index(older[at - 1]["name"]) + 1 if at else 0
        fields.insert(place, each)
        names.insert(place, each["name"])
    return fields


def snake(name: str) -> str:
    """snake_case of CamelCase; a word in capitals is one word."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def declare(messages: list[Definition]) -> Module:
    """The classes of an API: its request with its parts, then its response with its own."""
    module = Module()
    clashes = _clashes(messages)
    for message in messages:
        suffix = message["type"].title()
        parts = {each["name"]: each for each in message.get("commonStructs", [])}
        renamed = {name: name + suffix for name in clashes}
        body = _body(module, message["fields"], parts, renamed, _valid(message))
        module.names.add("Message")
        flexible = Versions.parse(message.get("flexibleVersions", "none")).first
        since = f", flexible_since={flexible}" if flexible < NEVER else ""
        valid = _valid(message)
        key = snake(message["name"].removesuffix(suffix)).upper()
        module.classes.append(
            f"class {message['name']}(Message, api_key=ApiKey.{key}, "
            f"versions=({valid.first}, {valid.last}){since}):\n{body}"
        )
    return module


def _valid(message: Definition) -> Versions:
    return Versions.parse(message["validVersions"])


def _clashes(messages: list[Definition]) -> set[str]:
    """Names of parts that both the request and the response have."""
    names = [_part_names(message) for message in messages]
    return set.intersection(*names)


def _part_names(definition: Definition) -> set[str]:
    found: set[str] = set()
    for each in [*definition.get("fields", []), *definition.get("commonStructs", [])]:
        if each.get("fields"):
            found |= {each.get("type", each["name"]).removeprefix("[]"), *_part_names(each)}
    return found


def _body(
    module: Module,
    fields: list[Definition],
    parts: dict[str, Definition],
    renamed: dict[str, str],
    around: Versions,
) -> str:
    """Declarations of the fields of something that versions `around` carry."""
    lines = []
    for each in fields:
        if Versions.parse(each["versions"]).within(around).is_empty:
            continue
        lines.append("    " + _field(module, each, parts, renamed, around))
    return "\n".join(lines) or "    pass"


def _field(
    module: Module,
    definition: Definition,
    parts: dict[str, Definition],
    renamed: dict[str, str],
    around: Versions,
) -> str:
    kind: str = definition["type"]
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    is_part = kind not in WIRE_TYPES
    carried = Versions.parse(definition["versions"]).within(around)
    if is_part:
        fields = definition.get("fields") or parts[kind]["fields"]
        kind = renamed.get(kind, kind)
        _declare_part(module, kind, _body(module, fields, parts, renamed, carried))
    else:
        kind = WIRE_TYPES[kind]
        module.names.add(kind)
    nullable = Versions.parse(definition.get("nullableVersions", "none")).within(carried)
    tagged = "tag" in definition
    # A tagged part is there or it is not: None stands for one that was not sent.
    absent = is_part and not is_array and tagged and nullable.is_empty
    default = _default(definition, kind, is_array or is_part, absent, not nullable.is_empty)
    arguments = {"default": default}
    if carried.first > around.first:
        arguments["since"] = str(carried.first)
    if carried.last < around.last:
        arguments["until"] = str(carried.last)
    if absent:
        arguments["nullable_since"] = "NEVER"
    elif not nullable.is_empty:
        if nullable.first > carried.first:
            arguments["nullable_since"] = str(nullable.first)
        if nullable.last < carried.last:
            arguments["nullable_until"] = str(nullable.last)
    if tagged:
        arguments["tag"] = str(definition["tag"])
        since = Versions.parse(definition["taggedVersions"]).first
        if since > carried.first:
            arguments["tagged_since"] = str(since)
    if definition.get("ignorable") and ("since" in arguments or "until" in arguments):
        arguments["ignorable"] = "True"
    annotation = f"list[{kind}]" if is_array else kind
    if absent or not nullable.is_empty:
        annotation += " | None"
    module.names |= {"EMPTY", "NEVER", "ZERO_UUID"} & set(arguments.values())
    name = snake(definition["name"])
    if len(arguments) == 1:
        return f"{name}: {annotation} = {default}"
    module.names.add("field")
    said = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return f"{name}: {annotation} = field({said})"


def _declare_part(module: Module, name: str, body: str) -> None:
    if module.declared.setdefault(name, body) != body:
        raise ValueError(f"{name} stands for two different things")
    text = f"class {name}(Part):\n{body}"
    if text not in module.classes:
        module.names.add("Part")
        module.classes.append(text)


def _default(
    definition: Definition, kind: str, collected: bool, absent: bool, nullable: bool
) -> str:
    given = definition.get("default")
    if absent or given == "null":
        return "None"
    if collected:
        return "EMPTY"
    if kind == "Records":
        return "None" if nullable else 'b""'
    if kind == "Uuid":
        return "ZERO_UUID"
    if kind == "Bytes":
        return 'b""'
    if kind == "String":
        return json.dumps(given or "")
    if kind == "Bool":
        return str(str(given).lower() == "true")
    if kind == "Float64":
        return str(float(given or 0))
    return str(int(str(given or 0), 0))


def text_of(module: Module, docstring: str) -> str:
    names = ", ".join(sorted(module.names))
    text = (
        f"{docstring}\n\nfrom __future__ import annotations\n\n"
        f"from ottla.protocol.apis import ApiKey\nfrom ottla.protocol.message import ({names},)\n\n\n"
    )
    return _formatted(text + "\n\n\n".join(module.classes) + "\n")


def _formatted(text: str) -> str:
    """As `ruff` would have it, which also sorts the imports."""
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(MESSAGES / "x.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def docstring_of(path: Path, name: str) -> str:
    """What the module says about itself; of a new one, its name."""
    if not path.exists():
        return f'"""{name}."""'
    found = re.match(r'""".*?"""', path.read_text(encoding="utf-8"), flags=re.S)
    return found.group() if found else f'"""{name}."""'


def module_text(
    newer: dict[str, Definition], older: dict[str, Definition], name: str, path: Path
) -> str:
    """The module of an API ("ListOffsets"), as it should be."""
    before = older if _was_released(older.get(f"{name}Request")) else {}
    messages = [
        merged(newer[name + kind], before.get(name + kind)) for kind in ("Request", "Response")
    ]
    return text_of(declare(messages), docstring_of(path, name))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("definitions", type=Path)
    parser.add_argument("apis", nargs="*", metavar="API", help="as modules are named: list_offsets")
    parser.add_argument("--older", type=Path, metavar="DEFINITIONS")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--into", type=Path, default=MESSAGES, help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args(arguments)
    newer = load(given.definitions)
    older = load(given.older) if given.older else {}
    names = {snake(name.removesuffix("Request")): name.removesuffix("Request") for name in newer
             if name.endswith("Request")}  # fmt: skip
    wanted = given.apis or [name for name in names if (given.into / f"{name}.py").exists()]
    differences = 0
    for api in sorted(wanted):
        if api not in names:
            print(f"{given.definitions} has no {api}", file=sys.stderr)
            return 2
        path = given.into / f"{api}.py"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = module_text(newer, older, names[api], path)
        if OWN_FIELD.sub("", before) == after:
            continue
        differences += 1
        if given.write and OWN_FIELD.search(before):
            print(f"{path}: put the fields of Ottla's own back", file=sys.stderr)
        if given.write:
            path.write_text(after, encoding="utf-8")
            print(path)
        else:
            lines = difflib.unified_diff(
                before.splitlines(True), after.splitlines(True), str(path), f"{names[api]} of Kafka"
            )
            sys.stdout.writelines(lines)
    return 1 if differences and not given.write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
