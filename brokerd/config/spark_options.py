"""Sorts the options of a Spark data source: its own, client settings, the other side's, Spark's, refused and unknown ones.

Shared by the sink and the source, which may not import each other. Spark passes options with lower-cased keys, so names are
compared case-insensitively and returned in their documented spelling. `split_options` does not parse values. docs/spark-options.md
documents how each name is treated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.config.client import ClientConfig, ConsumerConfig, ProducerConfig, parse_bootstrap_servers
from brokerd.config.kafka_names import PASSED_OVER, REFUSED, REFUSED_VALUES, why_refused
from brokerd.config.settings import INT64_MAX, UNITS_MS, duration_ms, is_number, settings_of
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError

KAFKA_PREFIX = "kafka."
_LISTED = "docs/reference/spark-options.md lists them all"
_GROUP_ID = "group.id"  # an option of the source here, a consumer setting in Kafka

# Spark's own options, which may accompany ours; ignored.
SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "serialization.format"})

# For CREATE TABLE, Spark passes the table's properties (provider, owner, comment, ...) together with the options, and each option
# a second time with _OPTION_PREFIX.
_TABLE_MARK = "provider"
_OPTION_PREFIX = "option."
_TABLE_PROPERTIES = frozenset({_TABLE_MARK, "owner", "comment", "location", "external", "is_managed_location", "collation"})


class SparkOption(NamedTuple):
    """One option. `default` is as a user would write it; empty = none."""

    name: str
    default: str
    doc: str


def _options(text: str) -> tuple[SparkOption, ...]:
    """Options from entries "name = default: doc", of which `= default` may be left out; further lines of an entry are indented."""
    entries = re.findall(r"^(\S+?)(?: = (\S+))?: (.+(?:\n .+)*)", text, re.MULTILINE)
    return tuple(SparkOption(name, default, " ".join(doc.split())) for name, default, doc in entries)


SOURCE_OPTIONS = _options("""\
subscribe: Topics to read, separated by commas. One of this, subscribePattern and assign is required.
subscribePattern: Java regular expression; topics whose name contains a match are read, also later ones.
assign: Partitions to read, as JSON: {"topic": [0, 1]}.
startingTimestamp: Time at which to begin: ms since 1970, ISO 8601 or -10m; overrides the next two.
startingOffsetsByTimestamp: The same by partition, as JSON; overrides startingOffsets.
startingOffsets: earliest, latest, JSON by partition (-2 earliest, -1 latest), committed (what group.id has read), -10m or ISO
    8601 (records from that time on) or -1000 (the newest records of each partition). Without it a stream begins at latest, a
    batch at earliest. A query that has a checkpoint continues there.
startingOffsetsByTimestampStrategy = error: Meaning of a time after the last record: error, or latest.
endingTimestamp: Batch only: time at which to end, in the same notation.
endingOffsetsByTimestamp: Batch only: the same by partition, as JSON.
endingOffsets = latest: Batch only: latest, JSON by partition (-1 latest), or a time or count as above.
where: Only these rows: comparisons of topic, partition, offset and timestamp with =, <, <=, >, >=, IN and BETWEEN, joined by AND.
    They cut what is fetched.
failOnDataLoss = true: Whether lost or damaged records end the query; if not, the read continues after them with a warning.
includeHeaders = false: Whether rows have a column headers.
maxOffsetsPerTrigger: Most offsets of one micro-batch, shared among the partitions.
maxBytesPerTrigger: Most bytes of one micro-batch, as stored on the broker's disk, shared among the partitions in whole record
    batches; at least one of each partition.
minOffsetsPerTrigger: A micro-batch waits for this many offsets, or for maxTriggerDelay.
maxTriggerDelay = 15m: Longest wait for minOffsetsPerTrigger.
minPartitions: Approximate number of tasks: large ranges are split.
maxRecordsPerPartition: Most offsets of one task: larger ranges are read in more pieces.
taskPerPartition = false: Whether each topic partition has a task of its own even for few rows, as with minPartitions or
    maxRecordsPerPartition. Otherwise partitions with little to read share a task, and the rows of a small micro-batch need none.
fetchOffset.numRetries: Accepted for ported pipelines, without effect: calls are tried for default.api.timeout.ms.
fetchOffset.retryIntervalMs: Accepted for ported pipelines, without effect: retries wait retry.backoff.ms and longer.
kafkaConsumer.pollTimeoutMs: Accepted for ported pipelines, without effect: reads are tried for default.api.timeout.ms.
groupIdPrefix = spark-brokerd: Streams: positions are recorded as a group of this name, a hyphen and an id that the checkpoint
    keeps.
group.id: Streams: positions are recorded as this group; overrides groupIdPrefix. Use one name per query. All reads: the group of
    startingOffsets=committed.
""")
SINK_OPTIONS = _options("""\
topic: Topic to write to; overrides the column topic. It must exist. Changing it, or between option and column, is a new write: a
    micro-batch that Spark replays is written again.
includeHeaders = true: If false, a column headers is an error; without such a column it has no effect.
delivery = exactly_once: exactly_once: the rows of a micro-batch or batch write become visible together, once; at_least_once: each
    row becomes visible when it is written, and again if Spark repeats its task.
txnAppId: Batch writes: with txnVersion, makes a repeated write of the same version write nothing.
txnVersion: Batch writes: whole number from 0 that rises from write to write of one txnAppId.
txnLabel: Tells writes of one micro-batch to one topic inside foreachBatch apart. A new label writes the rows again.
failOnReplayMismatch = true: Whether a committed micro-batch that is repeated with other rows ends the query; if not, it is
    skipped with a warning, for queries that are not deterministic.
""")


@dataclass(frozen=True, slots=True)
class Side:
    """The sink or the source: its own options, and the settings of its client."""

    where: str  # ends the sentence of an error
    own: tuple[str, ...]
    client: type[ClientConfig]

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of its client's settings."""
        return tuple(settings_of(self.client))  # type: ignore[arg-type]  # a class is hashable


SOURCE = Side("(option of the brokerd source)", tuple(option.name for option in SOURCE_OPTIONS), ConsumerConfig)
SINK = Side("(option of the brokerd sink)", tuple(option.name for option in SINK_OPTIONS), ProducerConfig)


class SplitOptions(dict[str, str]):
    """A mapping of the side's own options by documented name; `settings` has the client's settings by name."""

    def __init__(self, own: Mapping[str, str], settings: Mapping[str, str]) -> None:
        super().__init__(own)
        self.settings = dict(settings)


def split_options(options: Mapping[str, str], side: Side) -> SplitOptions:
    """Sorts `options` into own options and client settings. Drops Spark's options, those of the other side (one set of options
    often serves both, and a table has only one), and settings of Kafka's clients that have no effect here.

    A client setting may have the prefix `kafka.` or not. Raises ConfigError for refused and unknown names (suggesting the nearest
    valid one), and for a setting given twice with different values.
    """
    own = {name.lower(): name for name in side.own}
    settings = {name.lower(): name for name in side.settings}
    ignored = PASSED_OVER | SPARK_OPTIONS | _names_of_the_other(side)
    found_own: dict[str, str] = {}
    found_settings: dict[str, str] = {}
    for raw_name, value in _without_table_properties(options).items():
        key = raw_name.lower()
        bare = key.removeprefix(KAFKA_PREFIX)
        own_key = bare if bare == _GROUP_ID else key
        if own_key in own:
            _keep(found_own, own[own_key], value)
        elif bare in settings:
            _check_value(settings[bare], value, side)
            _keep(found_settings, settings[bare], value)
        elif bare not in ignored:
            raise _not_accepted(raw_name, side)
    return SplitOptions(found_own, found_settings)


def _keep(found: dict[str, str], name: str, value: str) -> None:
    if found.get(name, value) != value:
        raise ConfigError(f"'{name}' and '{KAFKA_PREFIX}{name}' are both given, with different values: keep one")
    found[name] = value


def require_servers(settings: Mapping[str, str], side: Side) -> None:
    """Raises ConfigError if bootstrap.servers is malformed or missing: its default would be each executor's loopback."""
    servers = settings.get("bootstrap.servers", "")
    if not servers.strip():
        raise ConfigError(
            f"option 'bootstrap.servers' is missing {side.where}: give the broker's address as HOST:PORT. A table of a Python "
            "source has its options in CREATE TABLE only, Spark does not pass them to queries: give them after the table's "
            "name in WITH (...), or use a temporary view, which keeps its OPTIONS (...)"
        )
    parse_bootstrap_servers(servers)


def parse_flag(name: str, text: str | None, *, default: bool) -> bool:
    """Parses an option that is true or false. Raises ConfigError."""
    if text is None:
        return default
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not '{text}'")
    return lowered == "true"


def parse_count(name: str, text: str | None) -> int | None:
    """Parses an option that is a positive whole number; None if absent. Raises ConfigError."""
    if text is None:
        return None
    digits = text.strip().removeprefix("+")
    if not is_number(digits, INT64_MAX) or int(digits) < 1:
        raise ConfigError(f"{name} must be a whole number between 1 and {INT64_MAX}, not '{text:.200}'")
    return int(digits)


def parse_duration_ms(name: str, text: str) -> int:
    """Parses an option that is a duration. Raises ConfigError."""
    parsed_ms = duration_ms(text)
    if parsed_ms is None:
        raise ConfigError(f"{name} must be a duration such as 15m, 30s or 500ms (units: {', '.join(UNITS_MS)}), not '{text:.200}'")
    return parsed_ms


def is_of_table(options: Mapping[str, str]) -> bool:
    """True if `options` are the properties of a table, which include its options."""
    return _TABLE_MARK in options


def _without_table_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options as the user wrote them, without the table's properties."""
    if not is_of_table(options):
        return options
    written = {name.removeprefix(_OPTION_PREFIX): value for name, value in options.items() if name.startswith(_OPTION_PREFIX)}
    return written or {name: value for name, value in options.items() if name.lower() not in _TABLE_PROPERTIES}


def _names_of_the_other(side: Side) -> frozenset[str]:
    other = SINK if side is SOURCE else SOURCE
    return frozenset(name.lower() for name in (*other.own, *other.settings))


def _check_value(name: str, value: str, side: Side) -> None:
    reason = REFUSED_VALUES.get((name, value.strip().lower()))
    if reason is not None:
        raise ConfigError(f"{name}={value.strip()} is not accepted {side.where}: {reason}")


def _not_accepted(raw_name: str, side: Side) -> ConfigError:
    """The error for a refused or unknown name."""
    key = raw_name.lower()
    prefix = KAFKA_PREFIX if key.startswith(KAFKA_PREFIX) else ""
    bare = key.removeprefix(KAFKA_PREFIX)
    candidates = side.settings if prefix else (*side.own, *side.settings)
    reason = why_refused(bare)
    otherwise = _LISTED if reason is None else ""
    if hint := "" if bare in REFUSED else did_you_mean(bare, sorted(candidates), prefix=prefix, otherwise=otherwise):
        return ConfigError(f"unknown option '{raw_name}' {side.where}: {hint}")
    return ConfigError(f"option '{prefix}{bare}' is not accepted {side.where}: {reason}")
