"""`brokerd offsets`: prints where partitions begin and end, and the offsets of a time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from brokerd.cli.output import dashed, fields, not_counted, show, size_text, sum_of_known, table, time_text
from brokerd.cli.parser import checked, client_config, connect
from brokerd.cli.topic_lookup import find_topics, named_partitions, topic_patterns
from brokerd.client.bounds import parse_timestamp
from brokerd.client.offsets import OffsetAndTimestamp
from brokerd.client.response_checks import error_in
from brokerd.client.topics import offset_count
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.errors import WireError, counted
from brokerd.wire.v1.topics_pb2 import PartitionDescription


class Row(NamedTuple):
    """One partition. `at_time` is None without --time, and an error if the lookup failed."""

    topic: str
    topic_id: bytes
    found: PartitionDescription
    at_time: OffsetAndTimestamp | WireError | None


def run(args: argparse.Namespace) -> None:
    """Prints one line per partition. Raises BrokerdError, UsageError; an error of --time is raised after the output."""
    now_ms = SystemClock().wall_ms()
    timestamp_ms = None if args.time is None else checked(args, lambda: parse_timestamp("--time", args.time, now_ms=now_ms))
    patterns = topic_patterns(args)
    config = client_config(args, ConsumerConfig)
    with connect(args, config) as client:
        topics = find_topics(client, args.topics, patterns)
        named = named_partitions(topics, args.partition)
        at_time = {} if timestamp_ms is None else client.list_offsets(dict.fromkeys(named, timestamp_ms), config.isolation_level)
        described = client.describe_topics([topic.name for topic in topics])
    rows = []
    for tp, name in named.items():
        found = described[name]
        if isinstance(found, WireError):
            raise found
        rows.append(Row(name, tp.topic_id, found.partitions[tp.partition], at_time.get(tp)))
    show(args, [_document(row) for row in rows], _lines(rows, has_time=timestamp_ms is not None))
    for row in rows:
        if isinstance(row.at_time, WireError):
            raise row.at_time


def _lines(rows: Sequence[Row], *, has_time: bool) -> Iterator[str]:
    headings = ("TOPIC", "PARTITION", "START", "STABLE", "END", "OFFSETS", "SIZE", *(("OFFSET", "RECORD TIME") if has_time else ()))
    yield table(headings, [_cells(row) for row in rows])
    for row in rows:
        if row.found.HasField("error"):
            yield f"{row.topic}-{row.found.partition} is not healthy: {error_in(row.found)}"
    if len(rows) > 1:
        counts = [offset_count(row.found) for row in rows]
        total = sum_of_known(row.found.size_bytes for row in rows) or 0
        held = f"{counted(sum_of_known(counts) or 0, 'offset')}, {size_text(total)}"
        yield f"{held} in {counted(len(rows), 'partition')}{not_counted(counts)}"


def _cells(row: Row) -> tuple[object, ...]:
    one = row.found
    numbers = (one.log_start_offset, one.last_stable_offset, one.high_watermark, offset_count(one))
    cells = (row.topic, one.partition, *map(dashed, numbers), size_text(one.size_bytes))
    if row.at_time is None:
        return cells
    if isinstance(row.at_time, WireError):
        return (*cells, "?", "?")
    return (*cells, dashed(row.at_time.offset), time_text(row.at_time.timestamp))


def _document(row: Row) -> dict[str, Any]:
    names = "partition log_start_offset last_stable_offset high_watermark size_bytes error"
    document = {"topic": row.topic, "topic_id": row.topic_id.hex(), **fields(row.found, names)}
    if row.at_time is not None:
        found = row.at_time if not isinstance(row.at_time, WireError) and row.at_time.offset >= 0 else None
        document["offset_at_time"] = found.offset if found is not None else None
        document["timestamp"] = found.timestamp if found is not None else None
    return document
