"""Prints topics, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerd.cli.output import print_json, size_text, table
from brokerd.client.topics import TopicDescription
from brokerd.errors import counted


def print_names(names: Sequence[str], *, as_json: bool) -> None:
    """One name per line, or a JSON array."""
    if as_json:
        print_json(list(names))
    else:
        for name in names:
            print(name)


def print_long(topics: Sequence[TopicDescription], *, as_json: bool) -> None:
    """One line per topic."""
    if as_json:
        print_json([_document(topic) for topic in topics])
        return
    rows = [
        (
            topic.name,
            len(topic.partitions),
            sum(partition.offset_count for partition in topic.partitions),
            size_text(sum(partition.size_bytes for partition in topic.partitions)),
        )
        for topic in topics
    ]
    print(table(("TOPIC", "PARTITIONS", "OFFSETS", "SIZE"), rows))


def print_descriptions(topics: Sequence[TopicDescription], *, as_json: bool, all_configs: bool) -> None:
    """Prints partitions, offsets, sizes and settings of each topic."""
    if as_json:
        print_json([_document(topic) for topic in topics])
        return
    for number, topic in enumerate(topics):
        if number:
            print()
        _print_description(topic, all_configs=all_configs)
    if not topics:
        print("no topics yet: create one with 'brokerd topics create NAME --partitions N'")


def _print_description(topic: TopicDescription, *, all_configs: bool) -> None:
    offsets = sum(partition.offset_count for partition in topic.partitions)
    size = sum(partition.size_bytes for partition in topic.partitions)
    parts = (counted(len(topic.partitions), "partition"), counted(offsets, "offset"), size_text(size), f"id {topic.topic_id.hex()}")
    print(f"topic {topic.name}: {', '.join(parts)}")
    own = [entry for entry in topic.configs if all_configs or not entry.is_default]
    if all_configs:
        rows = [(entry.name, entry.value, "broker" if entry.is_default else "topic", entry.documentation) for entry in own]
        print(table(("SETTING", "VALUE", "SET FOR", "MEANING"), rows, indent="  "))
    elif own:
        print("  set: " + ", ".join(f"{entry.name}={entry.value}" for entry in own))
    columns = ("PARTITION", "START", "STABLE", "END", "WRITTEN", "SIZE", "SEGMENTS", "PRODUCERS")
    partitions = [
        (
            partition.partition,
            partition.log_start_offset,
            partition.last_stable_offset,
            partition.high_watermark,
            partition.log_end_offset,
            size_text(partition.size_bytes),
            partition.segment_count,
            partition.producer_count,
        )
        for partition in topic.partitions
    ]
    print(table(columns, partitions, indent="  "))
    for partition in topic.partitions:
        if partition.error is not None:
            print(f"  partition {partition.partition} is not healthy: {partition.error}")


def _document(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "configs": {entry.name: {"value": entry.value, "is_default": entry.is_default} for entry in topic.configs},
        "partitions": [
            {
                "partition": partition.partition,
                "log_start_offset": partition.log_start_offset,
                "last_stable_offset": partition.last_stable_offset,
                "high_watermark": partition.high_watermark,
                "log_end_offset": partition.log_end_offset,
                "size_bytes": partition.size_bytes,
                "segment_count": partition.segment_count,
                "producer_count": partition.producer_count,
                "error": None if partition.error is None else partition.error.message,
            }
            for partition in topic.partitions
        ],
    }
