"""`brokerd offsets`: where the partitions of topics begin and end, and which offset belongs to a time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.cli.output import print_json, size_text, table, time_text
from brokerd.cli.parser import Subparsers, add_client_options, add_topic_options, checked, client_config, hasty
from brokerd.config.client import ConsumerConfig
from brokerd.errors import WireError, counted

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient
    from brokerd.client.consumer.offsets import OffsetAndTimestamp
    from brokerd.client.metadata import TopicInfo
    from brokerd.client.topics import PartitionDescription
    from brokerd.ids import TopicIdPartition

_EPILOG = """\
START is the first offset in the log; readers of committed records stop at STABLE, those of all records at END. OFFSETS are
those between START and END, of which markers of transactions take some; SIZE is that on disk. With --time, OFFSET is the first
record of that time or later, and RECORD TIME its own; without one, no record is as new.

examples:
  brokerd offsets events orders
  brokerd offsets --pattern '^sensor-' --partition 0 --json
  brokerd offsets events --time -10m
"""


class Row(NamedTuple):
    """One partition; `at_time` is None if no time is asked for, and an error if nobody can say."""

    topic: str
    topic_id: bytes
    found: PartitionDescription
    at_time: OffsetAndTimestamp | WireError | None


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "offsets",
        help="print where partitions begin and end, and offsets by time",
        description="Prints where the partitions of topics begin and end, and the offset that belongs to a time.",
        epilog=_EPILOG,
    )
    add_topic_options(parser)
    parser.add_argument(
        "--time", metavar="TIME", help="also the offset of this time: ms since 1970, ISO 8601, or a time ago such as -10m"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Prints one line per partition. Raises BrokerdError, UsageError; the error of a time only when all else is printed."""
    from brokerd.cli.topic_lookup import find_topics, named_partitions, topic_patterns
    from brokerd.client.blocking import BlockingClient
    from brokerd.client.consumer.bounds import parse_timestamp
    from brokerd.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    timestamp_ms = None if args.time is None else checked(args, lambda: parse_timestamp("--time", args.time, now_ms=now_ms))
    patterns = checked(args, lambda: topic_patterns(args))
    config = client_config(args, ConsumerConfig)
    with BlockingClient(hasty(config)) as client:
        topics = find_topics(client, args.topics, patterns)
        named = named_partitions(topics, args.partition)
        at_time = {} if timestamp_ms is None else client.list_offsets(dict.fromkeys(named, timestamp_ms), config.isolation_level)
        rows = list(_rows(client, topics, named, at_time))
    _print(rows, has_time=timestamp_ms is not None, as_json=args.json)
    for row in rows:
        if isinstance(row.at_time, WireError):
            raise row.at_time
    return 0


def _rows(
    client: BlockingClient,
    topics: Sequence[TopicInfo],
    named: Mapping[TopicIdPartition, str],
    at_time: Mapping[TopicIdPartition, OffsetAndTimestamp | WireError],
) -> list[Row]:
    described = {}
    for name, topic in client.describe_topics([topic.name for topic in topics]).items():
        if isinstance(topic, WireError):
            raise topic
        described[name] = topic
    return [Row(name, tp.topic_id, described[name].partitions[tp.partition], at_time.get(tp)) for tp, name in named.items()]


def _print(rows: Sequence[Row], *, has_time: bool, as_json: bool) -> None:
    if as_json:
        print_json([_document(row) for row in rows])
        return
    headings = ("TOPIC", "PARTITION", "START", "STABLE", "END", "OFFSETS", "SIZE", *(("OFFSET", "RECORD TIME") if has_time else ()))
    print(table(headings, [_cells(row) for row in rows]))
    for row in rows:
        if row.found.error is not None:
            print(f"{row.topic}-{row.found.partition} is not healthy: {row.found.error}")
    total = sum(row.found.size_bytes for row in rows)
    if len(rows) > 1:
        count = sum(row.found.offset_count for row in rows)
        print(f"{counted(count, 'offset')}, {size_text(total)} in {counted(len(rows), 'partition')}")


def _cells(row: Row) -> tuple[object, ...]:
    one = row.found
    cells = (row.topic, one.partition, one.log_start_offset, one.last_stable_offset, one.high_watermark, one.offset_count)
    if row.at_time is None:
        return (*cells, size_text(one.size_bytes))
    if isinstance(row.at_time, WireError):
        return (*cells, size_text(one.size_bytes), "?", "?")
    offset = "-" if row.at_time.offset < 0 else row.at_time.offset
    return (*cells, size_text(one.size_bytes), offset, time_text(row.at_time.timestamp))


def _document(row: Row) -> dict[str, Any]:
    one = row.found
    document: dict[str, Any] = {
        "topic": row.topic,
        "topic_id": row.topic_id.hex(),
        "partition": one.partition,
        "log_start_offset": one.log_start_offset,
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
        "size_bytes": one.size_bytes,
        "error": None if one.error is None else one.error.message,
    }
    if row.at_time is not None:
        known = row.at_time if not isinstance(row.at_time, WireError) and row.at_time.offset >= 0 else None
        document["offset_at_time"] = known.offset if known is not None else None
        document["timestamp"] = known.timestamp if known is not None else None
    return document
