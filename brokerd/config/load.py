"""Loads the daemon's settings: defaults < TOML file < environment < flags. broker.py declares them.

Every error is one sentence that names the setting, where it was given (file, variable, flag), and the valid values; an error in
the TOML syntax names the line. Only the named file is read, and the environment is passed in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.environment import settings_in
from brokerd.config.settings import from_mapping, settings_of, unknown_setting
from brokerd.config.small_files import read_small_file
from brokerd.errors import ConfigError

_TOML_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)


class Given(NamedTuple):
    """One setting as it was given; `where` ends an error's sentence."""

    name: str
    value: object
    where: str


def load_broker_config(*, path: str | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> BrokerConfig:
    """The daemon's effective settings. `flags` are by setting name. Raises ConfigError."""
    given = [*(_from_file(path) if path is not None else ()), *_from_environment(environ), *_from_flags(flags)]
    for name, value, where in given:
        from_mapping(BrokerConfig, {name: value}, where=where)  # one at a time, so that an error says where it was given
    config = from_mapping(BrokerConfig, {name: value for name, value, _ in given})
    check_broker(config)
    return config


def _from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    for name, value in flags.items():
        yield Given(name, value, "(given on the command line)")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    for name, value, variable in settings_in(environ):
        yield Given(name, value, f"(environment variable {variable})")


def _from_file(path: str) -> Iterator[Given]:
    text = _read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_malformed(path, text, str(error))) from None
    known = settings_of(BrokerConfig)
    where = f"({path})"
    for name, value in _flatten(document):
        if name not in known:
            raise unknown_setting(name, known, where=where)
        if isinstance(value, (list, dict)):
            raise ConfigError(f"{name} must be a single value, not a {'table' if isinstance(value, dict) else 'list'} {where}")
        yield Given(name, value, where)


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
    """A setting whose bare name starts a line, and is also the start of longer names that do."""
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
