"""Offsets as Spark's checkpoint keeps them: `{"topic": {"0": next}}` as in Spark's Kafka connector, plus `@brokerd`.

An offset is exclusive: one past the last record read. This is said here, once. `@brokerd` (no topic may be called so)
holds what offsets alone cannot say:

    version   of this form; a checkpoint of a later version is refused
    topicIds  which topic the offsets belong to: one that was deleted and recreated has another id
    starts    where a batch begins in partitions that are new in it, or in which it does not begin where the last one ended

The first offset of a query is symbolic, because Spark asks for it again when batch 0 is replayed: `startingOffsets`
resolved a second time would skip what came in between. What it resolved to is in the `starts` of the first end offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

META = "@brokerd"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A point in a query's input. `topic_ids`: 16 bytes each, by name."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, bytes]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False  # symbolic: nothing is resolved yet

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it; equal offsets give equal text, because everything is in order."""
        meta: dict[str, Any] = {"version": VERSION}
        if self.is_initial:
            return {META: {**meta, "initial": True}}
        meta["topicIds"] = {topic: self.topic_ids[topic].hex() for topic in sorted(self.topic_ids)}
        if self.starts:
            meta["starts"] = _nested(self.starts)
        return {**_nested(self.offsets), META: meta}


INITIAL = SourceOffset({}, {}, is_initial=True)


def parse_source_offset(stored: Mapping[str, Any]) -> SourceOffset:
    """An offset from a checkpoint. Raises ConfigError if brokerd did not write it, or a later version did."""
    meta = stored.get(META)
    if not isinstance(meta, dict) or not isinstance(meta.get("version"), int):
        raise ConfigError("the checkpoint's offsets were not written by brokerd: give this query a checkpointLocation of its own")
    if meta["version"] > VERSION:
        raise ConfigError(
            f"the checkpoint's offsets have version {meta['version']}, this brokerd reads up to {VERSION}: upgrade it to the one "
            "that wrote the checkpoint"
        )
    if meta.get("initial"):
        return INITIAL
    try:
        return SourceOffset(
            offsets=_flat({topic: partitions for topic, partitions in stored.items() if topic != META}),
            topic_ids={topic: bytes.fromhex(text) for topic, text in meta["topicIds"].items()},
            starts=_flat(meta.get("starts", {})),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the checkpoint's offsets cannot be read ({error}): {dict(stored)}") from None


def user_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets in the form in which users write and read them."""
    return _nested(offsets)


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(number)): int(offset) for topic, one in nested.items() for number, offset in one.items()}
