"""`brokerd produce`: writes lines to a topic, as kcat -P does. Lines become columns in lines.py; sending is the producer's."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from brokerd.cli.output import counted, note
from brokerd.cli.parser import (
    Subparsers,
    add_client_options,
    checked,
    client_settings,
    hasty,
    pair_list,
    usage_error,
    where,
)
from brokerd.config.client import ProducerConfig, producer_config
from brokerd.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES = 1_048_576
_EPILOG = """\
Lines are sent as they come. The command ends when all of them are acknowledged, or fails with the first that is not.

examples:
  echo 'hello' | brokerd produce events
  brokerd produce events -K '\\t' --file keyed.tsv -X compression.type=zstd
  brokerd produce events --header source=test --partition 0 < lines.txt
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "produce",
        help="write lines from standard input or a file to a topic",
        description="Writes lines from standard input or a file to a topic, one record each.",
        epilog=_EPILOG,
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("--file", metavar="FILE", default="-", help="read lines from here (default: - = standard input)")
    parser.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="what comes before TEXT in a line is the key; a line without it has none"
    )
    parser.add_argument(
        "-H", "--header", metavar="NAME=VALUE", action="append", default=[], help="a header of every record; may be repeated"
    )
    parser.add_argument("-p", "--partition", type=int, metavar="N", help="write to this partition (default: by the key's hash)")
    parser.add_argument("-D", "--delimiter", metavar="TEXT", default="\\n", help="what ends a record (default: \\n)")
    parser.add_argument("-Z", "--null", metavar="TEXT", help="a key or value of exactly TEXT is null; a null value is a tombstone")
    parser.add_argument("--acks", choices=("all", "1", "0"), help="when a record counts as written (default: all, flushed to disk)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary on standard error")
    add_client_options(parser, "producer settings")


def run(args: argparse.Namespace) -> int:
    """Writes until the input ends. Raises BrokerdError, UsageError."""
    from brokerd.cli.topic_lookup import check_partition, find_topic
    from brokerd.client.blocking import BlockingClient

    settings = client_settings(args, {"acks": args.acks} if args.acks else {})
    config = checked(args, lambda: producer_config(settings, where=where(args)))
    to_records = _line_format(args)
    with BlockingClient(hasty(config)) as client:
        topic = find_topic(client, args.topic)
    if args.partition is not None:
        check_partition(topic, args.partition)
    with _input(args.file) as source:
        record_count = _send(args, config, _batches(args, source, to_records))
    if not args.quiet:
        note(f"{counted(record_count, 'record')} written to topic '{args.topic}'")
    return 0


def _line_format(args: argparse.Namespace) -> Callable[[Sequence[bytes]], pa.RecordBatch]:
    """How lines become records, by the options. Raises UsageError."""
    from brokerd.cli.lines import records_from_lines, unescaped
    from brokerd.clock import SystemClock

    for option, text in (("--key-separator", args.key_separator), ("--delimiter", args.delimiter)):
        if text == "":
            raise usage_error(args, f"{option} must not be empty")
    clock = SystemClock()
    key_separator = unescaped(args.key_separator).encode() if args.key_separator is not None else None
    null_marker = args.null.encode() if args.null is not None else None
    headers = pair_list(args, "--header", args.header)
    return lambda lines: records_from_lines(
        lines, key_separator=key_separator, headers=headers, null_marker=null_marker, timestamp_ms=clock.wall_ms()
    )


def _send(args: argparse.Namespace, config: ProducerConfig, arrow_batches: Iterator[pa.RecordBatch]) -> int:
    """Sends it all and waits for the answers; the number of records. Raises the first failure."""
    import numpy as np

    from brokerd.allocator import keep_freed_memory
    from brokerd.client.producer import Producer

    keep_freed_memory()
    record_count = 0
    with Producer(config) as producer:
        for arrow_batch in arrow_batches:
            partitions = None if args.partition is None else np.full(arrow_batch.num_rows, args.partition, np.int32)
            producer.send_batch(args.topic, arrow_batch, partitions)
            record_count += arrow_batch.num_rows
            if producer.first_error is not None:
                break
        producer.flush()
        if producer.first_error is not None:
            raise producer.first_error
    return record_count


def _batches(
    args: argparse.Namespace, source: BinaryIO, to_records: Callable[[Sequence[bytes]], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The input as columns, a chunk at a time: a terminal or a pipe gives what it has, so nothing waits."""
    from brokerd.cli.lines import LineSplitter, unescaped

    splitter = LineSplitter(unescaped(args.delimiter).encode())
    while chunk := _read(source, args.file):
        lines = splitter.split(chunk)
        if lines:
            yield to_records(lines)
    last = splitter.last()
    if last:
        yield to_records(last)


def _read(source: BinaryIO, path: str) -> bytes:
    """The next bytes, empty at the end. Raises ConfigError."""
    try:
        return source.read1(_CHUNK_BYTES)  # type: ignore[attr-defined, no-any-return]
    except OSError as error:
        raise ConfigError(f"can not read {'standard input' if path == '-' else path}: {error.strerror}") from None


@contextlib.contextmanager
def _input(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below; this error is told apart from errors while it is read)
    except OSError as error:
        raise ConfigError(f"can not read {path}: {error.strerror}") from None
    with file:
        yield file
