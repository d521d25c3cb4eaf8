"""Checks of all that a test gives to a Broker, before another process gets it, which could say less of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.config.settings import INT32_MAX
from brokerd.errors import ConfigError


def text(name: str, given: object) -> str:
    """A text. Raises ConfigError."""
    if not isinstance(given, str):
        raise ConfigError(f"{name} is {given!r}: give it as a str")
    return given


def whole_number(name: str, given: object, *, maximum: int = INT32_MAX) -> int:
    """An int that the wire can carry; its range is the broker's business. Raises ConfigError."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(f"{name} is {given!r}: give it as an int")
    if abs(given) > maximum:
        raise ConfigError(f"{name} is {given}: give at most {maximum}")
    return given


def settings(name: str, given: object) -> dict[str, object]:
    """Settings by name. Raises ConfigError."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} is {given!r}: give a mapping of settings' names and values")
    return {text(f"the name of a setting in {name}", one): value for one, value in given.items()}
