"""`brokerd consume`: prints records of topics, like kcat -C. record_lines.py formats them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from brokerd.allocator import keep_freed_memory
from brokerd.cli.output import note
from brokerd.cli.parser import check_range, checked, client_config, connect, usage_error
from brokerd.cli.record_lines import Printer, Topics, format_printer, json_printer, unescaped
from brokerd.cli.topic_lookup import find_topics, named_partitions, topic_patterns
from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import Bound, parse_bound, ranges_of
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.errors import counted

_BYTES_PER_WRITE = 4_194_304


def run(args: argparse.Namespace) -> None:
    """Prints records until the requested end. Raises BrokerdError, UsageError."""
    _check_options(args)
    start, end = checked(args, lambda: _bounds(args))
    patterns = topic_patterns(args)
    checked(args, lambda: _printer(args, {}))  # report a bad format before connecting
    config = client_config(args, ConsumerConfig, {"isolation.level": args.isolation_level} if args.isolation_level else {})
    with connect(args, config) as client:
        topics = find_topics(client, args.topics, patterns, may_create=True)
        named = named_partitions(topics, args.partition)
        ranges = ranges_of(client, named, start, end, config.isolation_level)
    record_count = _print_records(args, config, ranges, _printer(args, {topic.topic_id: topic.name for topic in topics}))
    if not args.quiet:
        of = f"topic '{topics[0].name}'" if len(topics) == 1 else counted(len(topics), "topic")
        note(f"{counted(record_count, 'record')} from {counted(len(named), 'partition')} of {of}")


def _check_options(args: argparse.Namespace) -> None:
    check_range(args, "--max-messages", args.max_messages, maximum=INT64_MAX)
    check_range(args, "--timeout-ms", args.timeout_ms, maximum=INT32_MAX)
    for one, other, both in (
        ("--offset", "--from-beginning", args.offset and args.from_beginning),
        ("--end", "--exit", args.end and args.exit),
    ):
        if both:
            raise usage_error(args, f"{one} and {other} contradict each other: give one")


def _bounds(args: argparse.Namespace) -> tuple[Bound, Bound | None]:
    """The start and end of the read. Raises ConfigError."""
    now_ms = SystemClock().wall_ms()
    has_end = args.exit or args.end is not None
    start: Bound = OffsetSpec.EARLIEST if args.from_beginning or has_end else OffsetSpec.LATEST
    if args.offset is not None:
        start = parse_bound("--offset", args.offset, now_ms=now_ms)
    end = OffsetSpec.LATEST if args.exit else None
    return start, parse_bound("--end", args.end, now_ms=now_ms) if args.end is not None else end


def _printer(args: argparse.Namespace, topics: Topics) -> Printer:
    if args.json:
        return json_printer(topics)
    if args.key_separator is not None:
        separator = unescaped(args.key_separator).replace("%", "%%")
        return format_printer(f"%k{separator}%s\n", topics)
    return format_printer(unescaped(args.format) if args.format is not None else "%s\n", topics)


def _print_records(args: argparse.Namespace, config: ConsumerConfig, ranges: Sequence[FetchRange], printer: Printer) -> int:
    keep_freed_memory()
    printed = 0
    with BlockingClient(config) as client, PartitionFetcher(client, ranges, config) as fetcher:
        while args.max_messages is None or printed < args.max_messages:
            batch = fetcher.next_batch(timeout_ms=args.timeout_ms)
            if batch is None:
                break
            if args.max_messages is not None:
                batch = batch.head(args.max_messages - printed)
            for part in batch.parts(_BYTES_PER_WRITE):
                sys.stdout.buffer.write(printer(part))
            sys.stdout.buffer.flush()
            printed += batch.record_count
    return printed
