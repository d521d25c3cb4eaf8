"""Settings of the daemon that stand in the environment, and what else begins as they do: mistakes, and others' variables.

Kubernetes sets variables in every container for every service beside it, named after the service: for one called brokerd
BROKERD_SERVICE_HOST, BROKERD_PORT_9192_TCP_ADDR and more, and BROKERD_PORT=tcp://10.0.0.7:9192, which has the name of a
setting. They are told by their form, and set nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import settings_of
from brokerd.errors import ConfigError

PREFIX = "BROKERD_"
_NEAR_MISS = 0.7  # PROT is one of PORT; VERSION, which an image may carry, is one of nothing
# What begins with the prefix and belongs to the command line (parser.py) or to the project's tests.
_NO_SETTINGS = ("BROKERD_BOOTSTRAP_SERVER", "BROKERD_TEST_SCALE")
_SERVICE_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+$")


class FromEnvironment(NamedTuple):
    """A setting, and the variable that gives it."""

    name: str
    value: str
    variable: str


def variable_of(setting_name: str) -> str:
    """The variable of a setting: `log.segment.bytes` is BROKERD_LOG_SEGMENT_BYTES."""
    return PREFIX + setting_name.replace(".", "_").upper()


def settings_in(environ: Mapping[str, str]) -> Iterator[FromEnvironment]:
    """What the environment sets. Raises ConfigError for a variable that is nearly a setting's."""
    names = _settings_by_variable()
    for variable, value in _ours(environ):
        if variable in names:
            yield FromEnvironment(names[variable], value, variable)
            continue
        # Without the prefix, which makes all of them alike.
        suffixes = [name.removeprefix(PREFIX) for name in names]
        near = difflib.get_close_matches(variable.removeprefix(PREFIX).upper(), suffixes, n=1, cutoff=_NEAR_MISS)
        if near:
            raise ConfigError(f"unknown environment variable {variable}: did you mean {PREFIX}{near[0]}?")


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that somebody may take for a setting, and that sets nothing. None holds a value."""
    names = _settings_by_variable()
    notes = [
        f"environment variable {variable} is ignored: it holds the address of a Kubernetes service, which Kubernetes puts there by "
        f"itself (enableServiceLinks: false in the pod turns that off); {names[variable]} can be set in the file or by an option"
        for variable, value in sorted(environ.items())
        if variable in names and _is_of_a_service(variable, value)
    ]
    unknown = [variable for variable, _ in _ours(environ) if variable not in names]
    return notes + [f"environment variable {variable} is ignored: it is no setting of the broker" for variable in unknown]


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
