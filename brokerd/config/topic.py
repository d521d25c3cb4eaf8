"""Settings of a topic, under Kafka's names. A topic stores only its overrides; the broker-wide defaults (broker.py) supply the
rest. A partition's log uses the resulting `TopicConfig`, as `PartitionTable.configure` hands it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from brokerd.config.settings import INT32_MAX, INT64_MAX, from_mapping, setting, values_of
from brokerd.errors import ConfigError, InvalidConfigError

REPLICAS_MAX = 32  # of a partition


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic."""

    LISTED: ClassVar[str] = "docs/reference/settings-topics.md lists them all"

    segment_bytes: int = setting(1_073_741_824, "A segment is rolled at this many bytes.", between=(4_096, INT32_MAX))
    segment_ms: int = setting(604_800_000, "A segment is rolled when its first batch is this old.", between=(1, INT64_MAX))
    index_interval_bytes: int = setting(
        65_536, "Bytes of log between two index entries (Kafka: 4096; batches are larger here).", between=(0, INT32_MAX)
    )
    retention_ms: int = setting(
        604_800_000, "Segments whose newest record is older are deleted; -1 = never.", between=(-1, INT64_MAX)
    )
    retention_bytes: int = setting(
        -1, "The oldest segments are deleted while a partition is larger; -1 = never.", between=(-1, INT64_MAX)
    )
    max_message_bytes: int = setting(
        16_777_216, "Largest record batch accepted, header included (Kafka: 1048588).", between=(1_024, 33_554_432)
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record's timestamp is the producer's or the broker's time of append.",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "A record timestamped further ahead of the broker's clock is refused (CreateTime only).", between=(0, INT64_MAX)
    )
    min_insync_replicas: int = setting(
        1,
        "Replicas that must be in sync for acks=all; if the partition has fewer replicas, all of them (Kafka: refused).",
        between=(1, REPLICAS_MAX),
    )
    cleanup_policy: str = setting("delete", "What happens to old segments; only delete exists so far.", choices=("delete",))


def normalized(config: TopicConfig, overrides: Mapping[str, str]) -> dict[str, str]:
    """`overrides` in their stored form: normalized text of the values parsed into `config`."""
    values = values_of(config)
    return {name: str(values[name]) for name in overrides}


def topic_config(overrides: Mapping[str, str], defaults: Mapping[str, object]) -> TopicConfig:
    """The effective settings: the topic's overrides, then the defaults. Raises InvalidConfigError naming the setting."""
    try:
        return from_mapping(TopicConfig, {**defaults, **overrides}, where="(topic setting)")
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None
