"""Options of a Spark data source, told apart: its own, client settings, Spark's, refused and unknown ones.

Shared by the sink and the source, which may not import each other. Spark hands options over with lower-cased keys, so
names are compared without case and handed on as they are spelled in the documentation. Values are not parsed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from brokerd.config.settings import unknown_setting
from brokerd.errors import ConfigError

KAFKA_PREFIX = "kafka."

# Options that Spark itself, or its users, leave among ours: they say nothing to a broker.
SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})

# Settings of Kafka's clients that would contradict what Spark does, with the reason that the error gives.
REFUSED_EVERYWHERE = {
    "key.serializer": "keys are written as they are: cast the key column to string or binary",
    "value.serializer": "values are written as they are: cast the value column to string or binary",
    "key.deserializer": "keys are read as binary: cast the key column in the query",
    "value.deserializer": "values are read as binary: cast the value column in the query",
    "interceptor.classes": "there are no interceptors: change the rows in the query",
}


class SplitOptions(dict[str, str]):
    """Own options by name as documented (the mapping itself), and `settings` of the client by name."""

    def __init__(self, own: Mapping[str, str], settings: Mapping[str, str]) -> None:
        super().__init__(own)
        self.settings = dict(settings)


def split_options(
    options: Mapping[str, str],
    *,
    own: Collection[str],
    settings: Collection[str],
    refused: Mapping[str, str],
    where: str,
) -> SplitOptions:
    """Sorts `options` into own ones and client settings; leaves Spark's out.

    Every client setting may be written bare or with Kafka's prefix. `refused` maps a setting to the rest of a sentence
    that says what to do instead; `where` ends sentences, such as "(option of the sink)". Raises ConfigError for refused
    and unknown names (the nearest right one is named) and for a setting given twice with different values.
    """
    own_by_key = {name.lower(): name for name in own}
    settings_by_key = {name.lower(): name for name in settings}
    refused_by_key = {name.lower(): name for name in refused}
    found_own: dict[str, str] = {}
    found_settings: dict[str, str] = {}
    for raw_name, value in options.items():
        key = raw_name.lower()
        if key in own_by_key:
            found_own[own_by_key[key]] = value
            continue
        bare = key.removeprefix(KAFKA_PREFIX)
        if bare in refused_by_key:
            name = refused_by_key[bare]
            raise ConfigError(f"option '{_prefix_of(raw_name)}{name}' is not accepted {where}: {refused[name]}")
        if bare in settings_by_key:
            name = settings_by_key[bare]
            if found_settings.get(name, value) != value:
                raise ConfigError(f"'{name}' and '{KAFKA_PREFIX}{name}' are both given, with different values; keep one")
            found_settings[name] = value
        elif key not in SPARK_OPTIONS:
            raise unknown_setting(raw_name, _as_written(raw_name, own, settings), where=where, kind="option")
    return SplitOptions(found_own, found_settings)


def require_servers(settings: Mapping[str, str], where: str) -> None:
    """Raises ConfigError if no broker is named: a default would be another machine's loopback on every executor."""
    if not settings.get("bootstrap.servers", "").strip():
        raise ConfigError(f"option 'bootstrap.servers' is missing {where}: give the broker's address as HOST:PORT")


def parse_flag(name: str, text: str | None, *, default: bool) -> bool:
    """An own option that is true or false. Raises ConfigError."""
    if text is None:
        return default
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not '{text}'")
    return lowered == "true"


def parse_count(name: str, text: str | None) -> int | None:
    """An own option that is a positive whole number, or None if it is not given. Raises ConfigError."""
    if text is None:
        return None
    try:
        value = int(text.strip())
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, not '{text}'")
    return value


def _as_written(raw_name: str, own: Iterable[str], settings: Iterable[str]) -> list[str]:
    """All names that exist, in the form (with Kafka's prefix or without) in which the unknown one was written."""
    prefix = _prefix_of(raw_name)
    return [*own, *(prefix + name for name in settings)]


def _prefix_of(raw_name: str) -> str:
    return KAFKA_PREFIX if raw_name.lower().startswith(KAFKA_PREFIX) else ""
