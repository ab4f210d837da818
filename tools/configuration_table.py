"""Write docs/configuration.md from the tables of settings in the code.

python tools/configuration_table.py           write the page
python tools/configuration_table.py --check   say whether the page is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import generated_page

from ottla.server.configuration.broker_settings import DIFFERENT_DEFAULTS, SECTIONS
from ottla.server.configuration.ignored_settings import IGNORED_SETTINGS
from ottla.settings import Setting
from ottla.storage.config import TOPIC_SETTINGS, UNSUPPORTED_TOPIC_SETTINGS

INTRODUCTION = """\
<!-- Written by tools/configuration_table.py from the tables in the code; change those. -->
# Configuration

Settings have Kafka's names, types, defaults and limits. Those of a broker are read when it
starts, from (what stands first goes first):

1. `--set name=value`, as often as you like
2. the options of `ottla serve`: `--listen` (`listeners`), `--data` (`log.dirs`), `--advertise`
   (`advertised.listeners`); `HOST:PORT` stands for `PLAINTEXT://HOST:PORT`
3. the environment: `OTTLA_LOG_RETENTION_MS`, then `KAFKA_LOG_RETENTION_MS` as in Kafka's images
   (`_` for `.`, `__` for `_`, `___` for `-`)
4. the file of `--config`: Kafka's `server.properties`, or TOML if its name ends in `.toml`
5. the defaults below

Where a setting has several names (`log.retention.ms`, `.minutes`, `.hours`), the first of them
counts within one of these sources, and whatever a source says takes the place of what those after
it say under any of the names.

In TOML a name is quoted, or its parts are tables:

```toml
listeners = ["PLAINTEXT://:9092"]
"log.retention.hours" = 24

[auto.create.topics]
enable = false
```

A name that Ottla does not know is a warning, so a configuration that was written for Kafka can be
used as it is. A value that cannot be is an error that says where it was set and what is allowed:

    num.partitions=0 (from server.properties, line 7) is not valid: must be at least 1.

Settings marked *cluster-wide* can also be changed while brokers run (`ottla config set`,
`kafka-configs`), for one broker or for all. A topic's value is looked for in the topic's own
settings, then in those changed for the broker, then in those changed for all brokers, then in the
broker's configuration, then in the defaults.

Settings of TLS and SASL may be set for one listener alone, as `listener.name.NAME.ssl.client.auth`; the
credentials of a mechanism stand in `listener.name.NAME.MECHANISM.sasl.jaas.config` (both in lower case).
[security.md](security.md) has examples.
"""

DIFFERENCES = """\
## Where the defaults are not Kafka's

| setting | Ottla | Kafka | why |
|---|---|---|---|
"""

IGNORED = """\
## Settings of Kafka without effect

They are accepted for a broker, with one line of warning for each reason:

| reason | names |
|---|---|
"""

UNSUPPORTED = """\
## Topic settings of Kafka that are not supported

A request that sets one of these is answered with INVALID_CONFIG.

| name | why |
|---|---|
"""


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def default(setting: Setting) -> str:
    text = setting.render(setting.default)
    return "not set" if text is None else code(text) or "empty"


def allowed(setting: Setting) -> str:
    return setting.allowed.words if setting.allowed is not None else ""


def meaning(setting: Setting) -> str:
    later = f" *Takes effect with {setting.awaits}, in a later version.*" if setting.awaits else ""
    return setting.doc + later


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def topic_rows() -> Iterator[str]:
    for setting in TOPIC_SETTINGS:
        yield row(
            code(setting.name),
            setting.type.name.lower(),
            default(setting),
            allowed(setting),
            ", ".join(code(synonym.name) for synonym in setting.synonyms),
            meaning(setting),
        )


def broker_rows(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        yield row(
            code(setting.name),
            setting.type.name.lower(),
            default(setting),
            allowed(setting),
            setting.scope.value,
            meaning(setting),
        )


def page() -> str:
    parts = [INTRODUCTION, "\n", DIFFERENCES]
    by_name = {setting.name: setting for section in SECTIONS.values() for setting in section}
    for name, (kafka, why) in DIFFERENT_DEFAULTS.items():
        parts.append(row(code(name), default(by_name[name]), kafka, why))
    parts.append("\n## Settings of a topic\n\n")
    parts.append(
        row("name", "type", "default", "allowed", "broker settings for its default", "meaning")
    )
    parts.append("|---|---|---|---|---|---|\n")
    parts += topic_rows()
    parts.append("\n## Settings of a broker\n")
    for title, settings in SECTIONS.items():
        parts.append(f"\n### {title}\n\n")
        parts.append(row("name", "type", "default", "allowed", "may change", "meaning"))
        parts.append("|---|---|---|---|---|---|\n")
        parts += broker_rows(settings)
    parts += ["\n", UNSUPPORTED]
    parts += [row(code(name), why) for name, why in UNSUPPORTED_TOPIC_SETTINGS.items()]
    parts += ["\n", IGNORED]
    for group in IGNORED_SETTINGS:
        # A prefix that ends in a dot stands for all names that begin with it.
        prefixes = (prefix + "*" if prefix.endswith(".") else prefix for prefix in group.prefixes)
        parts.append(
            row(group.reason, ", ".join(code(n) for n in (*prefixes, *sorted(group.names))))
        )
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(generated_page.main("configuration.md", page, __doc__))
