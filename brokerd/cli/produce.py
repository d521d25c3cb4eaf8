"""`brokerd produce`: writes lines to a topic, like kcat -P. record_lines.py converts lines to columns."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.allocator import keep_freed_memory
from brokerd.cli.output import note
from brokerd.cli.parser import checked, client_settings, connect, pairs, usage_error, where
from brokerd.cli.record_lines import LineSplitter, records_from_json, records_from_lines, unescaped
from brokerd.cli.topic_lookup import check_partition, find_topic
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig, producer_config
from brokerd.errors import BrokerdError, ConfigError, counted
from brokerd.ids import TopicInfo
from brokerd.producer.futures import BatchFuture
from brokerd.producer.producer import Producer

_READ_BYTES = 1_048_576
_CHUNK_LINES = 1_000  # errors name lines at this granularity
_JSON_GROWTH = 7  # a byte may be escaped as \u0000, and a record has other fields


class _Chunk(NamedTuple):
    """Records from a range of input lines; `error` concerns the line after them."""

    first_line: int
    last_line: int
    arrow_batch: pa.RecordBatch
    partitions: Sequence[int] | None
    error: str | None = None


class _FailedError(Exception):
    """An error and the input lines it concerns."""

    def __init__(self, first_line: int, last_line: int, problem: str) -> None:
        super().__init__(problem)
        self.lines = f"line {first_line}" if first_line == last_line else f"lines {first_line} to {last_line}"
        self.problem = problem


_Headers = Sequence[tuple[str, str]]
_ToChunk = Callable[[int, Sequence[bytes]], _Chunk]


def run(args: argparse.Namespace) -> None:
    """Writes until the input ends. Raises BrokerdError, UsageError."""
    given = {"acks": args.acks, "transactional.id": args.transactional_id}
    settings = client_settings(args, {name: value for name, value in given.items() if value is not None})
    config = checked(args, lambda: producer_config(settings, where=where(args)))
    _check_options(args)
    headers = pairs(args, "--header", args.header)
    with connect(args, config) as client:
        topic = find_topic(client, args.topic, may_create=True)
    if args.partition is not None:
        check_partition(topic, args.partition)
    to_chunk = _json_format(args, headers, topic) if args.json else _line_format(args, headers)
    with _input(args.file) as source:
        record_count = _send(args, config, _chunks(args, source, to_chunk, config.max_request_size))
    if not args.quiet:
        note(f"{counted(record_count, 'record')} written to topic '{args.topic}'")


def _check_options(args: argparse.Namespace) -> None:
    for option, text in (("--key-separator", args.key_separator), ("--delimiter", args.delimiter)):
        if text == "":
            raise usage_error(args, f"{option} must not be empty")
    for option, given in (("--key-separator", args.key_separator), ("--null", args.null)):
        if args.json and given is not None:
            raise usage_error(args, f"{option} is for lines of text, not for --json")
    if args.keep_partitions and (not args.json or args.partition is not None):
        raise usage_error(args, "--keep-partitions needs --json" + ("" if not args.json else " and excludes --partition"))


def _line_format(args: argparse.Namespace, headers: _Headers) -> _ToChunk:
    """Returns a function that converts lines of text to records."""
    clock = SystemClock()
    key_separator = unescaped(args.key_separator).encode() if args.key_separator is not None else None
    null_marker = args.null.encode() if args.null is not None else None

    def to_chunk(first_line: int, lines: Sequence[bytes]) -> _Chunk:
        arrow_batch = records_from_lines(
            lines, key_separator=key_separator, headers=headers, null_marker=null_marker, timestamp_ms=clock.wall_ms()
        )
        partitions = None if args.partition is None else [args.partition] * len(lines)
        return _Chunk(first_line, first_line + len(lines) - 1, arrow_batch, partitions)

    return to_chunk


def _json_format(args: argparse.Namespace, headers: _Headers, topic: TopicInfo) -> _ToChunk:
    """Returns a function that converts JSON lines to records."""
    clock = SystemClock()
    partition_count = topic.partition_count if args.keep_partitions else None

    def to_chunk(first_line: int, lines: Sequence[bytes]) -> _Chunk:
        found = records_from_json(lines, headers=headers, timestamp_ms=clock.wall_ms(), partition_count=partition_count)
        partitions = found.partitions if args.partition is None else [args.partition] * len(found.partitions)
        row_count, error = found.bad or (len(lines), None)
        return _Chunk(first_line, first_line + row_count - 1, found.arrow_batch, partitions, error)

    return to_chunk


def _send(args: argparse.Namespace, config: ProducerConfig, chunks: Iterator[_Chunk]) -> int:
    """Sends all chunks, waits until they are acknowledged, and returns the number of records. With a transactional.id, all are in
    one transaction. Raises BrokerdError for the first failure."""
    keep_freed_memory()
    is_transaction = bool(config.transactional_id)
    with Producer(config) as producer, producer.transaction() if is_transaction else contextlib.nullcontext():
        failure: BrokerdError | None = None
        try:
            _send_chunks(args.topic, producer, chunks)
        except _FailedError as error:
            failure = BrokerdError(f"{_name_of(args.file)}, {error.lines}: {error.problem}")
        except BrokerdError as error:
            failure = error
        producer.flush()
        written = sum(totals.record_count for totals in producer.delivered().values())
        if failure is not None:
            result = "the transaction is aborted" if is_transaction else f"{counted(written, 'record')} written"
            raise BrokerdError(f"{failure.message}; {result}")
    return written


def _send_chunks(topic: str, producer: Producer, chunks: Iterator[_Chunk]) -> None:
    """Sends all chunks. Raises _FailedError for the first chunk, in input order, that fails, and ConfigError if reading does."""
    sent: deque[tuple[_Chunk, BatchFuture]] = deque()
    for chunk in chunks:
        if chunk.arrow_batch.num_rows:
            partitions = None if chunk.partitions is None else np.array(chunk.partitions, np.int32)
            try:
                sent.append((chunk, producer.send_batch(topic, chunk.arrow_batch, partitions)))
            except BrokerdError as error:
                raise _FailedError(chunk.first_line, chunk.last_line, error.message) from None
        if chunk.error is not None:
            _await(producer, sent)
            raise _FailedError(chunk.last_line + 1, chunk.last_line + 1, chunk.error)
        while sent and sent[0][1].done():
            _check(*sent.popleft())
        if producer.first_error is not None:
            break
    _await(producer, sent)


def _await(producer: Producer, sent: deque[tuple[_Chunk, BatchFuture]]) -> None:
    producer.flush()
    for chunk, future in sent:
        _check(chunk, future)


def _check(chunk: _Chunk, future: BatchFuture) -> None:
    error = future.exception()
    if error is not None:
        raise _FailedError(chunk.first_line, chunk.last_line, error.message)


def _chunks(args: argparse.Namespace, source: BinaryIO, to_chunk: _ToChunk, max_request_size: int) -> Iterator[_Chunk]:
    """The input in chunks. Each read returns what a terminal or pipe has ready, so lines are sent without waiting for more. Raises
    _FailedError for a line that no request can hold, before it fills the memory."""
    splitter = LineSplitter(unescaped(args.delimiter).encode())
    line = 1
    while True:
        data = _read(source, args.file)
        lines = splitter.split(data) if data else splitter.last()
        for at in range(0, len(lines), _CHUNK_LINES):
            some = lines[at : at + _CHUNK_LINES]
            yield to_chunk(line, some)
            line += len(some)
        if splitter.unfinished_bytes > max_request_size * (_JSON_GROWTH if args.json else 1):
            problem = f"without a delimiter it exceeds max.request.size ({max_request_size}), so no request can hold it"
            raise _FailedError(line, line, problem)
        if not data:
            return


def _read(source: BinaryIO, path: str) -> bytes:
    """The next bytes; empty at the end of the input. Raises ConfigError."""
    try:
        return source.read1(_READ_BYTES)  # type: ignore[attr-defined, no-any-return]
    except OSError as error:
        raise ConfigError(f"cannot read {_name_of(path)}: {error.strerror}") from None


def _name_of(path: str) -> str:
    return "standard input" if path == "-" else path


@contextlib.contextmanager
def _input(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below; errors while it is read are handled elsewhere)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    with file:
        yield file
