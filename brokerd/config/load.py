"""Loads the broker's settings: defaults < TOML file < environment < flags. broker.py declares them.

Every error is one sentence that names the setting, its origin (file, variable or flag) and the valid values; an error in TOML
syntax names the line. Reads no file but the given one; the environment is a parameter.

Some variables only look like settings. Kubernetes sets variables in every container for each service of its namespace, named after
the service. For a service called brokerd these include BROKERD_SERVICE_HOST, BROKERD_PORT_9192_TCP_ADDR and
BROKERD_PORT=tcp://10.0.0.7:9192, which has the name of a setting. They are recognized by their form and ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.settings import from_mapping, settings_of, unknown_setting
from brokerd.config.small_files import parse_toml, read_small_file
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

_TOML_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)

PREFIX = "BROKERD_"
# Not settings, and ignored without a warning: the variable of the command line (parser.py), and those of the project's tests, which
# the tests' brokers inherit. Other variables with the prefix that are not settings cause a warning.
_OF_TESTS = (
    "BROKERD_TEST_FLIGHTS",
    "BROKERD_TEST_KILLS",
    "BROKERD_TEST_FACTOR",
    "BROKERD_TEST_NODES",
    "BROKERD_TEST_RUNS",
    "BROKERD_TEST_SCALE",
    "BROKERD_TEST_SEED",
)
_NO_SETTINGS = ("BROKERD_BOOTSTRAP_SERVER", *_OF_TESTS)
_SERVICE_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+$")


class _Given(NamedTuple):
    """A setting as given; `where` (its origin) ends the sentence of an error."""

    name: str
    value: object
    where: str


def load_broker_config(*, path: str | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> BrokerConfig:
    """The broker's effective settings. `flags` maps setting names to values. Raises ConfigError."""
    given = [*(_from_file(path) if path is not None else ()), *_from_environment(environ)]
    given += [_Given(name, value, "(given on the command line)") for name, value in flags.items()]
    for name, value, where in given:
        from_mapping(BrokerConfig, {name: value}, where=where)  # one at a time, so that an error names the origin
    config = from_mapping(BrokerConfig, {name: value for name, value, _ in given})
    check_broker(config)
    return config


def _from_file(path: str) -> Iterator[_Given]:
    text = _read_text(path)
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_malformed(path, text, str(error))) from None
    known = settings_of(BrokerConfig)
    where = f"({path})"
    seen: set[str] = set()
    for name, value in _flatten(document):
        if name not in known:
            raise unknown_setting(name, known, where=where, listed=BrokerConfig.LISTED)
        if name in seen:  # in TOML, a quoted name differs from the same one in a table
            raise ConfigError(f"{name} is given twice {where}")
        seen.add(name)
        if isinstance(value, (list, dict)):
            raise ConfigError(f"{name} must be a single value, not a {'table' if isinstance(value, dict) else 'list'} {where}")
        yield _Given(name, value, where)


def _read_text(path: str) -> str:
    data = read_small_file(path, "the configuration file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text") from None


def _malformed(path: str, text: str, problem: str) -> str:
    """tomllib's message, with the line number first."""
    place = _TOML_PLACE.match(problem)
    if place is None:
        return f"{path}: {problem}"
    line = place.group(2) or str(text.rstrip("\n").count("\n") + 1)
    if place.group(1) == "Cannot overwrite a value":
        shorter = _unquoted_setting(text)
        if shorter is not None:
            return (
                f'{path}, line {line}: in TOML the name {shorter} needs quotes, since longer names begin with it: "{shorter}" = ...'
            )
    return f"{path}, line {line}: {place.group(1)[:1].lower()}{place.group(1)[1:]}"


def _unquoted_setting(text: str) -> str | None:
    """A setting that starts a line unquoted, if a longer name that begins with it does too; otherwise None."""
    known = settings_of(BrokerConfig)
    written = [name for name in known if re.search(rf"^\s*{re.escape(name)}\s*=", text, re.MULTILINE)]
    return next((name for name in written if any(other.startswith(f"{name}.") for other in written)), None)


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted names of all values: `[log.segment] bytes = 1` and `log.segment.bytes = 1` give the same setting."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def variable_of(setting_name: str) -> str:
    """The environment variable of a setting, such as BROKERD_LOG_SEGMENT_BYTES for `log.segment.bytes`."""
    return PREFIX + setting_name.replace(".", "_").upper()


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    """The settings in the environment. Raises ConfigError for a variable that is close to a setting's name."""
    names = _settings_by_variable()
    for variable, value in _ours(environ):
        if variable in names:
            yield _Given(names[variable], value, f"(environment variable {variable})")
            continue
        # Compared without the prefix, which would make all names similar.
        suffixes = [name.removeprefix(PREFIX) for name in names]
        hint = did_you_mean(variable.removeprefix(PREFIX), suffixes, prefix=PREFIX, otherwise="")
        if hint:
            raise ConfigError(f"unknown environment variable {variable}: {hint}")


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like a setting but is ignored. Values are left out."""
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
    """The variables with the prefix, except those of the command line, the tests and Kubernetes."""
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in _NO_SETTINGS and not _is_of_a_service(variable, value):
            yield variable, value


def _is_of_a_service(variable: str, value: str) -> bool:
    is_address = variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None
    return is_address or _SERVICE_NAME.search(variable.removeprefix(PREFIX.rstrip("_"))) is not None


def _settings_by_variable() -> dict[str, str]:
    return {variable_of(name): name for name in settings_of(BrokerConfig)}
