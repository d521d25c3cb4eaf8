"""Declares, parses and checks settings, and values such as 15m; contains no particular setting.

A configuration is a frozen dataclass whose fields are created with `setting(...)`. `from_mapping` builds one from names as users
write them ("linger.ms"). Its errors name the setting that is unknown, malformed or out of range.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Number
from typing import Any, ClassVar, Protocol, TypeVar

from brokerd.config.kafka_names import kafka_hint
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

Value = int | bool | str
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DURATION = re.compile(r"([0-9]{1,19})\s*([a-z]*)", re.ASCII)
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Config(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    LISTED: ClassVar[str]  # a hint where all settings are listed


C = TypeVar("C", bound=_Config)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `name` is as users write it, `doc` one sentence; the bounds of `between` are inclusive. Values have the type of
    the default. `default_of`: the topic setting whose broker-wide default this is. `field`: the name of the dataclass field."""

    name: str
    doc: str
    default: Value
    between: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    default_of: str = ""
    field: str = ""


def setting(
    default: Value,
    doc: str,
    *,
    between: tuple[int, int] | None = None,
    choices: tuple[str, ...] = (),
    is_secret: bool = False,
    name: str = "",
) -> Any:
    """Declares a dataclass field that is a setting. Unless given, its name is the field's with dots for underscores. The value of
    a secret setting appears neither in errors nor in the repr."""
    return declared(Setting(name, doc, default, between, choices, is_secret))


def declared(spec: Setting) -> Any:
    """Declares a dataclass field for an existing Setting."""
    return field(default=spec.default, metadata={"setting": spec}, repr=not spec.is_secret)


@functools.cache
def settings_of(cls: Any) -> Mapping[str, Setting]:
    """All settings of a configuration class, by name, in order of declaration."""
    specs = [(f.name, f.metadata["setting"]) for f in fields(cls)]
    named = [replace(spec, name=spec.name or name.replace("_", "."), field=name) for name, spec in specs]
    return {spec.name: spec for spec in named}


def values_of(config: _Config) -> dict[str, Value]:
    """The values of a configuration, by setting name."""
    return {name: getattr(config, spec.field) for name, spec in settings_of(type(config)).items()}


def given_config(
    cls: type[C], config: object, keywords: Mapping[str, object], build: Callable[[Mapping[str, object]], C] | None = None
) -> C:
    """The settings that a program passes: `config`, a `cls`, a mapping by name or None, and keywords with underscores for dots.
    Keywords win. `build` replaces `from_mapping`. Raises ConfigError."""
    if isinstance(config, cls):
        if keywords:
            raise ConfigError(f"settings by keyword go with a mapping, not with a {cls.__name__}")
        return config
    given = {**by_name({} if config is None else config), **{name.replace("_", "."): value for name, value in keywords.items()}}
    return from_mapping(cls, given) if build is None else build(given)


def by_name(given: object) -> Mapping[str, object]:
    """`given`, which must be a mapping by name. Raises ConfigError."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__  # not its content, which may be a token
        raise ConfigError(f"settings must be a mapping by name, such as {{'bootstrap.servers': 'host:9192'}}, not of type {kind}")
    for name in given:
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting must be text, not {name!r:.200}")
    return given


def from_mapping(cls: type[C], given: Mapping[str, object], *, where: str = "") -> C:
    """Builds `cls` from settings by name; others keep their defaults.

    `where` ends the sentence of an error, such as "(option of the sink)". Raises ConfigError.
    """
    known = settings_of(cls)
    values: dict[str, Value] = {}
    for name, raw in given.items():
        if name not in known:
            raise unknown_setting(name, known, where=where, listed=cls.LISTED)
        values[known[name].field] = _check(known[name], _parse(known[name], raw, where=where), where=where)
    return cls(**values)


def unknown_setting(
    name: str, known: Iterable[str], *, where: str = "", kind: str = "setting", listed: str | None = None
) -> ConfigError:
    """The error for an unknown name. It gives the replacement of a Kafka setting, or the nearest known name; `listed`: as in
    `did_you_mean`."""
    of_name, of_family = kafka_hint(name.lower()) if kind == "setting" else (None, None)
    hint = of_name or did_you_mean(name, sorted(known), otherwise=of_family, listed=listed)
    return ConfigError(f"unknown {kind} '{name}'{_spaced(where)}: {hint}")


def _parse(spec: Setting, raw: object, *, where: str) -> Value:
    """The value of `raw`, which is text or already has the right type. Raises ConfigError."""
    kind, text = type(spec.default), _text_of(raw)
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{spec.name} must be true or false{_not(spec, text)}{_spaced(where)}")
    if kind is int:
        try:
            return whole_number(text)
        except ValueError:
            raise ConfigError(f"{spec.name} must be a whole number{_not(spec, text)}{_spaced(where)}") from None
    if isinstance(raw, bool) or not isinstance(raw, (str, Number, os.PathLike)):  # "None" would be the name of a group
        kind_text = "None: leave it out" if raw is None else f"of type {type(raw).__name__}"
        raise ConfigError(f"{spec.name} must be text, not {kind_text}{_spaced(where)}")
    if not is_unicode(text):
        raise ConfigError(f"{spec.name} must be text that UTF-8 can encode{_not(spec, ascii(text)[1:-1])}{_spaced(where)}")
    if "\0" in text:
        raise ConfigError(f"{spec.name} must be text without NUL{_spaced(where)}")
    return text


def _text_of(raw: object) -> str:
    try:
        return str(raw).strip()
    except ValueError:  # Python refuses to convert an int of thousands of digits
        return "a number of thousands of digits"


def is_number(text: str, maximum: int) -> bool:
    """True if `text` is a number in ASCII digits, at most `maximum`. Checks the length first: int() refuses thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) and int(text) <= maximum


def whole_number(text: str) -> int:
    """Parses ASCII digits with an optional sign. Raises ValueError for anything else, including what int() accepts, such as 1_000
    and digits of other scripts.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text[:40]!a} is no whole number")
    return int(text)


def duration_ms(text: str) -> int | None:
    """A duration such as 15m in milliseconds, or None if `text` is not a duration. As in Spark, a bare number is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit_ms = UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit_ms is None or int(found[1]) * unit_ms > INT64_MAX:
        return None
    return int(found[1]) * unit_ms


def _check(spec: Setting, value: Value, *, where: str) -> Value:
    """Returns `value` if it is in the setting's range. Raises ConfigError naming the range, and the value unless it is secret."""
    if spec.choices and str(value) not in spec.choices:
        raise ConfigError(f"{spec.name} must be one of {', '.join(spec.choices)}{_not(spec, value)}{_spaced(where)}")
    if spec.between is not None and isinstance(value, int) and not spec.between[0] <= value <= spec.between[1]:
        raise ConfigError(f"{spec.name} must be {range_text(spec)}{_not(spec, value)}{_spaced(where)}")
    return value


def range_text(spec: Setting) -> str:
    """The setting's range in words, such as "between 1 and 65535"; empty if it has none."""
    if spec.choices:
        return "one of " + ", ".join(spec.choices)
    return "between {} and {}".format(*spec.between) if spec.between is not None else ""


def is_unicode(text: str) -> bool:
    """False if `text` has lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not(spec: Setting, value: Value) -> str:
    if spec.is_secret:
        return ""
    return f", not '{value}'" if isinstance(value, str) else f", not {value}"


def _spaced(where: str) -> str:
    return f" {where}" if where else ""
