"""The daemon's settings in the environment, and variables that merely look like them: mistakes, and variables of others.

Kubernetes sets variables in every container for every service next to it, named after the service. For a service called brokerd
these are BROKERD_SERVICE_HOST, BROKERD_PORT_9192_TCP_ADDR and more, and BROKERD_PORT=tcp://10.0.0.7:9192, which has the name of a
setting. They are recognized by their form and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import settings_of
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

PREFIX = "BROKERD_"
# Variables with the prefix that belong to the command line (parser.py), or to the project's tests, whose brokers inherit them. No
# broker goes by one of those; others of that look are ignored with a word, as all that are no settings.
_OF_TESTS = ("BROKERD_TEST_FLIGHTS", "BROKERD_TEST_KILLS", "BROKERD_TEST_RUNS", "BROKERD_TEST_SCALE", "BROKERD_TEST_SEED")
_NO_SETTINGS = ("BROKERD_BOOTSTRAP_SERVER", *_OF_TESTS)
_SERVICE_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+$")


class FromEnvironment(NamedTuple):
    """A setting and the variable that sets it."""

    name: str
    value: str
    variable: str


def variable_of(setting_name: str) -> str:
    """The variable of a setting: for `log.segment.bytes`, BROKERD_LOG_SEGMENT_BYTES."""
    return PREFIX + setting_name.replace(".", "_").upper()


def settings_in(environ: Mapping[str, str]) -> Iterator[FromEnvironment]:
    """The settings in the environment. Raises ConfigError for a variable that is close to a setting's name."""
    names = _settings_by_variable()
    for variable, value in _ours(environ):
        if variable in names:
            yield FromEnvironment(names[variable], value, variable)
            continue
        # Compared without the prefix, which would make all of them alike.
        suffixes = [name.removeprefix(PREFIX) for name in names]
        hint = did_you_mean(variable.removeprefix(PREFIX), suffixes, prefix=PREFIX, otherwise="")
        if hint:
            raise ConfigError(f"unknown environment variable {variable}: {hint}")


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that could be taken for a setting but is ignored. None contains a value."""
    names = _settings_by_variable()
    notes = [
        f"environment variable {variable} is ignored: it holds the address of a Kubernetes service, which Kubernetes sets by "
        f"itself (enableServiceLinks: false in the pod turns that off); {names[variable]} can be set in the file or with an option"
        for variable, value in sorted(environ.items())
        if variable in names and _is_of_a_service(variable, value)
    ]
    unknown = [variable for variable, _ in _ours(environ) if variable not in names]
    return notes + [f"environment variable {variable} is ignored: it is not a setting of the broker" for variable in unknown]


def _ours(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that can only be meant for the broker."""
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in _NO_SETTINGS and not _is_of_a_service(variable, value):
            yield variable, value


def _is_of_a_service(variable: str, value: str) -> bool:
    is_address = variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None
    return is_address or _SERVICE_NAME.search(variable.removeprefix(PREFIX.rstrip("_"))) is not None


def _settings_by_variable() -> dict[str, str]:
    return {variable_of(name): name for name in settings_of(BrokerConfig)}
