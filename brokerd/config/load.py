"""Where the daemon's settings come from: defaults < TOML file < environment < flags. What they are stands in broker.py.

Every error is one sentence that says which setting, where it was given (file and line, variable, flag) and what would
be right. No file but the one named is read, and the environment is handed in.
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

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TOML_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)


class Given(NamedTuple):
    """One setting as somebody gave it; `where` ends an error's sentence."""

    name: str
    value: object
    where: str


def load_broker_config(*, path: str | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> BrokerConfig:
    """The daemon's settings in force. `flags` are by setting name. Raises ConfigError."""
    given = [*(_from_file(path) if path is not None else ()), *_from_environment(environ), *_from_flags(flags)]
    for name, value, where in given:
        from_mapping(BrokerConfig, {name: value}, where=where)  # on its own, so that an error says where it was given
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
    lines = _key_lines(text)
    known = settings_of(BrokerConfig)
    for name, value in _flatten(document):
        where = f"({path}, line {_line_of(name, lines)})"
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
    """tomllib's message with the line in front."""
    place = _TOML_PLACE.match(problem)
    if place is None:
        return f"{path}: {problem}"
    line = place.group(2) or str(text.rstrip("\n").count("\n") + 1)
    if place.group(1) == "Cannot overwrite a value":
        shorter = _unquoted_setting(text.splitlines()[: int(line)])
        if shorter is not None:
            return (
                f'{path}, line {line}: in TOML the name {shorter} needs quotes, since longer names begin with it: "{shorter}" = ...'
            )
    return f"{path}, line {line}: {place.group(1)[:1].lower()}{place.group(1)[1:]}"


def _unquoted_setting(lines: list[str]) -> str | None:
    """The setting whose bare dotted name is a value and also the beginning of another key; one of both is in the last line."""
    known = settings_of(BrokerConfig)
    names = [name for name in (_dotted(key.group(1)) for key in map(_KEY.match, lines) if key) if name in known]
    pairs = ((one, other) for one in names for other in names)
    return next((one for one, other in pairs if other.startswith(f"{one}.")), None)


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted names of all values: `[log.segment] bytes = 1` and `log.segment.bytes = 1` are the same setting."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _key_lines(text: str) -> dict[str, int]:
    """The line of each key and table by dotted name. For error texts only: it does not understand multi-line values."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TABLE.match(line):
            prefix = _dotted(table.group(1)) + "."
            lines.setdefault(prefix[:-1], number)
        elif key := _KEY.match(line):
            lines.setdefault(prefix + _dotted(key.group(1)), number)
    return lines


def _dotted(written: str) -> str:
    return ".".join(part.strip("\"'") for part in _KEY_PART.findall(written))


def _line_of(name: str, lines: Mapping[str, int]) -> int:
    """The line of `name`, or of the inline table that holds it."""
    while name not in lines and "." in name:
        name = name.rpartition(".")[0]
    return lines.get(name, 1)
