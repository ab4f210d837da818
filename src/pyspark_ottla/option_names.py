"""The names of options: Spark hands them over in lower case, and each gets its spelling back here."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ottla.client.configuration.clients import CONFIG_FILE, CONFIG_VARIABLE
from ottla.client.errors import ConfigurationError
from pyspark_ottla.errors import OptionError

logger = logging.getLogger(__name__)

KAFKA: Final = "kafka."  # what the client's options begin with

# What a client's connections are kept by, between tasks of one process.
ClientKey = tuple[tuple[str, str], ...]


def client_key(client: Mapping[str, str]) -> ClientKey:
    return tuple(sorted(client.items()))


def client_options(named: Mapping[str, str], but: Collection[str] = ()) -> dict[str, str]:
    """The client's options among these, without those in `but`, by the client's own names.

    A file of options that the environment names goes with them: the tasks of a query run elsewhere, in
    an environment of their own.
    """
    client = {
        name.removeprefix(KAFKA): value
        for name, value in named.items()
        if name.startswith(KAFKA) and name not in but
    }
    file = os.environ.get(CONFIG_VARIABLE)
    if file and "path" not in named:  # which reads files, not a broker
        client.setdefault(CONFIG_FILE, os.path.abspath(os.path.expanduser(file)))
    return client


class OptionNames:
    """The options of the source, or of the sink: taken, passed over with a line in the log, or refused.

    `no_effect` and `refused` say why; a reason that is empty is not worth a line. `near` are the names
    that an unknown one may have been meant for.
    """

    def __init__(
        self,
        side: str,
        use: str,
        *,
        accepted: Iterable[str],
        no_effect: Mapping[str, str],
        refused: Mapping[str, str],
        near: Iterable[str],
    ) -> None:
        self._side = side  # "source" or "sink"
        self._use = use  # "reads" or "writes"
        self._no_effect = no_effect
        self._refused = refused
        self._spellings = {name.lower(): name for name in (*accepted, *no_effect, *refused)}
        self._near = [name.lower() for name in near]

    def spelled(self, given: Mapping[str, str]) -> dict[str, str]:
        """The options by their names as they are written; OptionError at the first that is refused."""
        return {self._spelling(name): value for name, value in given.items()}

    def _spelling(self, name: str) -> str:
        lowered = name.lower()
        known = self._spellings.get(lowered)
        if known is not None and known in self._refused:
            raise OptionError(f"{known} is no option of {self._use} here: {self._refused[known]}")
        if known is not None:
            if self._no_effect.get(known):
                logger.warning("option %s has no effect here: %s", known, self._no_effect[known])
            return known
        if lowered.startswith(KAFKA):
            return lowered
        near = difflib.get_close_matches(lowered, self._near, n=1, cutoff=0.6)
        if not near:
            raise OptionError(
                f"{name} (Spark has handed it over in lower case) is no option of the {self._side} "
                "ottla"
            )
        spelling = self._spellings.get(near[0], near[0])
        raise OptionError(
            f"{name} is no option of the {self._side} ottla; did you mean {spelling}?"
        )


def client_option_error(error: ConfigurationError) -> OptionError:
    """What the client says of one of its options, by the names that they have here."""
    return OptionError(KAFKA + str(error).replace("did you mean ", f"did you mean {KAFKA}"))
