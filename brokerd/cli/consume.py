"""`brokerd consume`: prints records of a topic, as kcat -C does. Formats are in record_format.py, offsets in start_offsets.py."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from brokerd.cli.output import counted, note
from brokerd.cli.parser import Subparsers, add_client_options, check_range, checked, client_config, hasty, usage_error
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerd.cli.record_format import Printer
    from brokerd.client.consumer.positions import FetchRange
    from brokerd.client.metadata import TopicInfo

_BYTES_PER_WRITE = 4_194_304
_EPILOG = """\
format letters: %s value, %k key, %h headers, %o offset, %p partition, %t topic, %T timestamp (ms since 1970),
  %S and %K sizes of value and key in bytes (-1 = null), %% a percent sign; \\n and \\t as usual

Records of one partition come in the order of their offsets; partitions come side by side.

examples:
  brokerd consume events --from-beginning
  brokerd consume events --exit -f '%p:%o %k = %s\\n'
  brokerd consume events --offset -10 --exit --json
  brokerd consume events --offset @2026-01-31T12:00:00Z --partition 0 --max-messages 5
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "consume",
        help="print records of a topic",
        description="Prints records of a topic and keeps printing new ones until interrupted.\n"
        "Starts at the end; with --exit or --from-beginning, at the beginning.",
        epilog=_EPILOG,
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("--from-beginning", action="store_true", help="start with the oldest record (--offset beginning)")
    parser.add_argument(
        "-o", "--offset", metavar="WHERE", help="start at: beginning, end, N, -N (the last N of each partition), @TIME"
    )
    parser.add_argument(
        "-p", "--partition", type=int, action="append", metavar="N", help="only this partition; may be repeated (default: all)"
    )
    parser.add_argument("-n", "--max-messages", type=int, metavar="N", help="stop after N records")
    parser.add_argument("-e", "--exit", action="store_true", help="stop at the current end of each partition")
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
    from brokerd.cli.start_offsets import parse_offset, ranges_of
    from brokerd.cli.topic_lookup import find_topic
    from brokerd.client.blocking import BlockingClient

    check_range(args, "--max-messages", args.max_messages, maximum=INT64_MAX)
    check_range(args, "--timeout-ms", args.timeout_ms, maximum=INT32_MAX)
    if args.offset and args.from_beginning:
        raise usage_error(args, "--offset and --from-beginning contradict each other: give one")
    where = args.offset or ("beginning" if args.from_beginning or args.exit else "end")
    start = checked(args, lambda: parse_offset(where))
    printer = checked(args, lambda: _printer(args))
    config = _config(args)
    with BlockingClient(hasty(config)) as client:
        topic = find_topic(client, args.topic)
        partitions = _partitions(args, topic)
        ranges = ranges_of(client, topic, partitions, start, to_end=args.exit, isolation=config.isolation_level)
    record_count = _print_records(args, config, ranges, printer)
    if not args.quiet:
        note(f"{counted(record_count, 'record')} from {counted(len(partitions), 'partition')} of topic '{args.topic}'")
    return 0


def _config(args: argparse.Namespace) -> ConsumerConfig:
    settings = {"isolation.level": args.isolation_level} if args.isolation_level else {}
    return client_config(args, ConsumerConfig, settings)


def _printer(args: argparse.Namespace) -> Printer:
    from brokerd.cli.lines import unescaped
    from brokerd.cli.record_format import format_printer, json_printer

    if args.json:
        return json_printer(args.topic)
    if args.key_separator is not None:
        separator = unescaped(args.key_separator).replace("%", "%%")
        return format_printer(f"%k{separator}%s\n", args.topic)
    return format_printer(unescaped(args.format) if args.format is not None else "%s\n", args.topic)


def _partitions(args: argparse.Namespace, topic: TopicInfo) -> Sequence[int]:
    from brokerd.cli.topic_lookup import check_partition

    asked = sorted(set(args.partition)) if args.partition else range(topic.partition_count)
    for partition in asked:
        check_partition(topic, partition)
    return asked


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
