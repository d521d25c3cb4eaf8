"""Offsets in the format of Spark's checkpoint: `{"topic": {"0": next}}` as in Spark's Kafka connector, plus `@brokerd`.

An offset is exclusive: one past the last record read. `@brokerd`, which is not a valid topic name, holds what offsets alone cannot
express:

    version   of this format; a checkpoint of a later version is refused
    topicIds  the ids of the topics: a recreated topic has a different id
    starts    where a batch starts in new partitions, and in partitions where it does not start at the end of the last batch
    epochs    the id of the leader epoch of the record before each offset, which identifies the history of the log. Offsets
              without one, such as those of empty partitions, are not checked
    sourceId  a random id with the lifetime of the checkpoint: Spark passes no such id to a Python source

The first offset of a query is symbolic, because Spark asks for it again when batch 0 is replayed: resolving `startingOffsets` a
second time would skip records that arrived in between. The `starts` of the first end offset record the resolved offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from brokerd.arguments import UINT32_MAX
from brokerd.datasource.bounds import numbers_of
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

T = TypeVar("T")
META = "@brokerd"
VERSION = 1
_TOPIC_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A position in a query's input. `topic_ids`: 16 bytes each, by name."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, bytes]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False  # symbolic: nothing is resolved yet
    source_id: str = ""  # empty in checkpoints older than source ids
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark stores. It is sorted, so that equal offsets give equal text."""
        meta: dict[str, Any] = {"version": VERSION}
        if self.is_initial:
            return {META: {**meta, "initial": True}}
        meta["topicIds"] = {topic: self.topic_ids[topic].hex() for topic in sorted(self.topic_ids)}
        if self.source_id:
            meta["sourceId"] = self.source_id
        if self.starts:
            meta["starts"] = nested(self.starts)
        if self.epochs:
            meta["epochs"] = nested({tp: f"{epoch_id:08x}" for tp, epoch_id in self.epochs.items()})
        return {**nested(self.offsets), META: meta}


INITIAL = SourceOffset({}, {}, is_initial=True)


def parse_source_offset(stored: Mapping[str, Any]) -> SourceOffset:
    """An offset from a checkpoint. Raises ConfigError if brokerd did not write it, or if a later version did."""
    meta = stored.get(META)
    if not isinstance(meta, dict) or not isinstance(meta.get("version"), int):
        raise ConfigError("the checkpoint's offsets were not written by brokerd: give this query a checkpointLocation of its own")
    if meta["version"] > VERSION:
        raise ConfigError(
            f"the checkpoint's offsets have version {meta['version']}, this brokerd reads up to {VERSION}: upgrade to the version "
            "that wrote the checkpoint"
        )
    if meta.get("initial"):
        return INITIAL
    try:
        topic_ids = {topic: bytes.fromhex(text) for topic, text in meta["topicIds"].items()}
        offsets = numbers_of("the checkpoint's offsets must be numbers by partition", stored)
        starts = numbers_of("the checkpoint's starts must be numbers by partition", meta.get("starts", {}))
        ids = {topic: {number: _epoch_id(text) for number, text in one.items()} for topic, one in meta.get("epochs", {}).items()}
        epochs = numbers_of("the checkpoint's epochs must be ids by partition", ids, maximum=UINT32_MAX)
        if not {tp.topic for tp in offsets} <= topic_ids.keys() or not epochs.keys() <= offsets.keys():
            raise ValueError("a topic has no id, or an epoch no offset")
        if any(len(topic_id) != _TOPIC_ID_BYTES for topic_id in topic_ids.values()):
            raise ValueError(f"a topic's id has other than {_TOPIC_ID_BYTES} bytes")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the checkpoint's offsets cannot be read ({error}): {dict(stored)}") from None
    return SourceOffset(offsets, topic_ids, starts, source_id=str(meta.get("sourceId", "")), epochs=epochs)


def nested(offsets: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Values by partition in the JSON format of the options, sorted."""
    found: dict[str, dict[str, T]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def _epoch_id(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text))
