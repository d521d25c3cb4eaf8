"""`brokerd consume`: prints records of topics, as kcat -C does. Formats are in record_format.py."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from brokerd.cli.output import note
from brokerd.cli.parser import (
    Subparsers,
    add_client_options,
    add_topic_options,
    check_range,
    checked,
    client_config,
    hasty,
    usage_error,
)
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerd.cli.record_format import Printer, Topics
    from brokerd.client.consumer.bounds import Bound
    from brokerd.client.consumer.positions import FetchRange

_BYTES_PER_WRITE = 4_194_304
_EPILOG = """\
WHERE: earliest, latest, an offset N, -N (the newest N records of each partition), -10m (records at most so old; ms, s, m, h,
  d), a time such as 2026-01-31T12:00:00Z, or @MS (ms since 1970). A start is included. An end is not, and is never
  behind the current end of the log.
format letters: %s value, %k key, %h headers, %o offset, %p partition, %t topic, %T timestamp (ms since 1970),
  %S and %K sizes of value and key in bytes (-1 = null), %% a percent sign; \\n and \\t as usual

Records of one partition come in the order of their offsets; partitions come side by side. Topics and partitions that are made
later are not followed.

examples:
  brokerd consume events --from-beginning
  brokerd consume events orders --exit -f '%t-%p:%o %k = %s\\n'
  brokerd consume --pattern '^sensor-' --offset -10m --json
  brokerd consume events --offset 2026-01-31 --end 2026-02-01 --partition 0 --max-messages 5
  brokerd consume events --exit --json | brokerd produce copy --json --keep-partitions
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "consume",
        help="print records of topics",
        description="Prints records of topics and keeps printing new ones until interrupted.\n"
        "Starts at the end; with --exit, --end or --from-beginning, at the beginning.",
        epilog=_EPILOG,
    )
    add_topic_options(parser)
    parser.add_argument("--from-beginning", action="store_true", help="start with the oldest record (--offset earliest)")
    parser.add_argument("-o", "--offset", metavar="WHERE", help="start here")
    parser.add_argument("--end", metavar="WHERE", help="stop before this")
    parser.add_argument("-e", "--exit", action="store_true", help="stop at the current end of each partition (--end latest)")
    parser.add_argument("-n", "--max-messages", type=int, metavar="N", help="stop after N records")
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="stop after this long without a new record")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("-f", "--format", metavar="FORMAT", help="how to print a record (default: '%%s\\n')")
    formats.add_argument("-K", "--key-separator", metavar="TEXT", help="print key, TEXT and value")
    formats.add_argument("-J", "--json", action="store_true", help="print one JSON object per line, with all fields")
    parser.add_argument(
        "--isolation-level",
        choices=("read_committed", "read_uncommitted"),
        help="whether records of open and aborted transactions are returned (default: read_committed)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary on standard error")
    add_client_options(parser, "consumer settings")


def run(args: argparse.Namespace) -> int:
    """Prints until the requested end. Raises BrokerdError, UsageError."""
    from brokerd.cli.topic_lookup import find_topics, named_partitions, topic_patterns
    from brokerd.client.blocking import BlockingClient
    from brokerd.client.consumer.bounds import ranges_of

    _check_options(args)
    start, end = checked(args, lambda: _bounds(args))
    patterns = checked(args, lambda: topic_patterns(args))
    checked(args, lambda: _printer(args, {}))  # mistakes in the command line come before any connection
    config = _config(args)
    with BlockingClient(hasty(config)) as client:
        topics = find_topics(client, args.topics, patterns)
        named = named_partitions(topics, args.partition)
        ranges = ranges_of(client, named, start, end, config.isolation_level)
    record_count = _print_records(args, config, ranges, _printer(args, {topic.topic_id: topic.name for topic in topics}))
    if not args.quiet:
        of = f"topic '{topics[0].name}'" if len(topics) == 1 else counted(len(topics), "topic")
        note(f"{counted(record_count, 'record')} from {counted(len(named), 'partition')} of {of}")
    return 0


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
    """Where to start and to end. Raises ConfigError."""
    from brokerd.client.consumer.bounds import parse_bound
    from brokerd.client.consumer.offsets import OffsetSpec
    from brokerd.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    has_end = args.exit or args.end is not None
    start: Bound = OffsetSpec.EARLIEST if args.from_beginning or has_end else OffsetSpec.LATEST
    if args.offset is not None:
        start = parse_bound("--offset", args.offset, now_ms=now_ms)
    end = OffsetSpec.LATEST if args.exit else None
    return start, parse_bound("--end", args.end, now_ms=now_ms) if args.end is not None else end


def _config(args: argparse.Namespace) -> ConsumerConfig:
    settings = {"isolation.level": args.isolation_level} if args.isolation_level else {}
    return client_config(args, ConsumerConfig, settings)


def _printer(args: argparse.Namespace, topics: Topics) -> Printer:
    from brokerd.cli.lines import unescaped
    from brokerd.cli.record_format import format_printer, json_printer

    if args.json:
        return json_printer(topics)
    if args.key_separator is not None:
        separator = unescaped(args.key_separator).replace("%", "%%")
        return format_printer(f"%k{separator}%s\n", topics)
    return format_printer(unescaped(args.format) if args.format is not None else "%s\n", topics)


def _print_records(args: argparse.Namespace, config: ConsumerConfig, ranges: Sequence[FetchRange], printer: Printer) -> int:
    from brokerd.allocator import keep_freed_memory
    from brokerd.client.blocking import BlockingClient
    from brokerd.client.consumer.fetcher import PartitionFetcher

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
