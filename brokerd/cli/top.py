"""`brokerd top`: samples topics, groups and transactions of a broker; prints each sample as a screen of text or a line of JSON.

A screen is a dict with the names that --json prints. A value is None if the broker does not know it, or if a rate has no earlier
sample.

    time_ms, version, cluster_id, group_count
    unreachable_since_ms, problem   while the broker does not respond; the other values are then those of its last answer
    topics        topic, partitions, offsets (from start to end; markers of transactions take some), offsets_per_s and bytes_per_s
                  (written), size_bytes, held_back (offsets that readers of committed records do not see), unhealthy (partitions),
                  unknown (partitions that no leader describes; the other numbers leave them out)
    groups        group_id, partitions, lag, lag_bytes, lag_ms (the longest), offsets_per_s, unknown (partitions of unknown
                  lag; the sums leave them out)
    transactions  transactional_id, state, open_members, age_ms (of the oldest open member), owner
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerd.cli.output import NONE, at_least, duration_text, known, size_text, sum_of_known, table, time_text
from brokerd.cli.parser import client_config, connect, usage_error
from brokerd.client.blocking import BlockingClient
from brokerd.client.groups import lag_of, partition_of
from brokerd.client.topics import offset_count, undecided_count
from brokerd.client.transactions import state_name
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import BrokerdError, WireError, counted
from brokerd.ids import TopicIdPartition
from brokerd.sharing import equal_shares
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupPartitionDescription
from brokerd.wire.v1.topics_pb2 import PartitionDescription, TopicDescription
from brokerd.wire.v1.transaction_pb2 import TransactionListing

GROUPS_MAX = 50  # each costs a call
_INTERVAL_MIN_MS = 100
_INTERVAL_MAX_MS = 3_600_000
_API_TIMEOUT_MS = 3_000  # short, to show "unreachable" soon
_MS_PER_S = 1_000
_LINES_OF_A_TABLE = 3  # title, headings, and an empty line after it
_NAME_MIN_WIDTH = 12
# The alternate screen, without cursor and line wrap: the terminal itself cuts long lines.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

Offsets = Mapping[TopicIdPartition, int]
Partitions = Mapping[TopicIdPartition, PartitionDescription]
Row = dict[str, Any]
Screen = dict[str, Any]


def run(args: argparse.Namespace) -> None:
    """Watches until interrupted. Raises BrokerdError, UsageError."""
    if not _INTERVAL_MIN_MS <= args.interval_ms <= _INTERVAL_MAX_MS:
        raise usage_error(args, f"--interval-ms must be between {_INTERVAL_MIN_MS} and {_INTERVAL_MAX_MS}, not {args.interval_ms}")
    if not (args.once or args.json or sys.stdout.isatty()):
        raise usage_error(args, "standard output is no terminal: give --once or --json")
    config = client_config(args, ClientConfig)
    config = replace(config, api_timeout_ms=min(config.api_timeout_ms, _API_TIMEOUT_MS))
    clock = SystemClock()
    with connect(args, config) as client, _quiet_client():
        watch = screens(lambda: look(client, clock), clock)
        if args.once:
            client.server_info()  # --once fails if the broker is down
            next(watch)
            time.sleep(args.interval_ms / _MS_PER_S)
            _print(args, next(watch))
        elif args.json:
            for screen in watch:
                _print(args, screen)
                time.sleep(args.interval_ms / _MS_PER_S)
        else:
            _watch_at_terminal(args, watch)


def _print(args: argparse.Namespace, screen: Screen) -> None:
    text = json.dumps(screen, ensure_ascii=False) if args.json else "\n".join(lines_of(screen, args.bootstrap_server))
    print(text, flush=True)


def _watch_at_terminal(args: argparse.Namespace, watch: Iterator[Screen]) -> None:
    """Redraws in place until Ctrl-C or SIGTERM, then restores the terminal."""
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.stdout.write(_ENTER)
        for screen in watch:
            width, height = shutil.get_terminal_size()
            lines = lines_of(screen, args.bootstrap_server, width=width, height=height)
            sys.stdout.write(_HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_REST)
            sys.stdout.flush()
            time.sleep(args.interval_ms / _MS_PER_S)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, terminate)


@contextlib.contextmanager
def _quiet_client() -> Iterator[None]:
    """Keeps the client's warnings off the screen, which shows the same problems."""
    quiet = logging.NullHandler()
    client_logger = logging.getLogger("brokerd")
    client_logger.addHandler(quiet)
    try:
        yield
    finally:
        client_logger.removeHandler(quiet)


# --- samples


@dataclass(frozen=True, slots=True)
class Look:
    """A sample of the broker. `monotonic_ms`: its begin, since answers may wait for a leader. `groups`: the groups with the latest
    commits, out of `group_count`."""

    monotonic_ms: int
    version: str
    cluster_id: str
    topics: tuple[TopicDescription, ...] = ()
    groups: tuple[DescribeGroupResponse, ...] = ()
    group_count: int = 0
    transactions: tuple[TransactionListing, ...] = ()


def look(client: BlockingClient, clock: Clock) -> Look:
    """Takes a sample of the broker. Raises BrokerdError."""
    server, began_ms = client.server_info(), clock.monotonic_ms()
    topics = tuple(one for one in client.describe_topics().values() if not isinstance(one, WireError))
    listed = sorted(client.list_groups(), key=lambda one: -one.commit_timestamp)
    groups = client.describe_groups([listing.group_id for listing in listed[:GROUPS_MAX]])
    transactions = tuple(one for one in client.list_transactions() if state_name(one.state) != "empty")
    return Look(
        monotonic_ms=began_ms,
        version=server.software_version,
        cluster_id=server.cluster_id,
        topics=topics,
        groups=tuple(groups),
        group_count=len(listed),
        transactions=transactions,
    )


def screens(take: Callable[[], Look], clock: Clock) -> Iterator[Screen]:
    """Takes a sample for each screen. After a failure the screen keeps the last answers, shows the broker as unreachable since its
    first failure, and computes rates anew."""
    before: Look | None = None
    tables: Screen = {"version": None, "cluster_id": None, "group_count": 0, "topics": [], "groups": [], "transactions": []}
    unreachable_since_ms: int | None = None
    while True:
        began_ms, problem = clock.wall_ms(), None
        try:
            now = take()
        except BrokerdError as error:
            before, problem = None, error.message
            if unreachable_since_ms is None:
                unreachable_since_ms = began_ms
        else:
            tables = tables_of(before, now)
            before, unreachable_since_ms = now, None
        yield {"time_ms": clock.wall_ms(), "unreachable_since_ms": unreachable_since_ms, "problem": problem, **tables}


def tables_of(before: Look | None, now: Look) -> Screen:
    """The rows of `now`, with rates since `before`; topics are sorted by rate, groups by lag, transactions by age."""
    elapsed_ms = 0 if before is None else now.monotonic_ms - before.monotonic_ms
    partitions = {tp: one for topic in (before.topics if before else ()) for tp, one in _partitions_of(topic).items()}
    committed = {group.group.group_id: _committed_of(group) for group in (before.groups if before else ())}
    topics = [_topic(topic, partitions, elapsed_ms) for topic in now.topics]
    groups = [_group(group, committed.get(group.group.group_id, {}), elapsed_ms) for group in now.groups]
    transactions = [_transaction(one) for one in now.transactions]
    return {
        "version": now.version,
        "cluster_id": now.cluster_id,
        "topics": sorted(topics, key=lambda one: (-(one["offsets_per_s"] or 0), -(one["size_bytes"] or 0), one["topic"])),
        "group_count": now.group_count,
        "groups": sorted(groups, key=lambda one: (-(one["lag"] or 0), one["group_id"])),
        "transactions": sorted(transactions, key=lambda one: (-(one["age_ms"] or 0), one["transactional_id"])),
    }


def rate(before: Offsets, now: Offsets, elapsed_ms: int) -> float | None:
    """Offsets or bytes per second over the partitions known in both samples; None if there are none, no time has passed, or a value
    decreased."""
    steps = [now[one] - before[one] for one in now if one in before]
    if elapsed_ms <= 0 or not steps or min(steps) < 0:
        return None
    return sum(steps) * _MS_PER_S / elapsed_ms


def _partitions_of(topic: TopicDescription) -> Partitions:
    """The partitions that their leaders describe; an unknown partition is not a sample."""
    return {TopicIdPartition(topic.topic_id, one.partition): one for one in topic.partitions if one.high_watermark >= 0}


def _written_per_s(before: Partitions, now: Partitions, elapsed_ms: int) -> float | None:
    """The growth of logs in bytes per second; None if records may have been deleted meanwhile, which hides growth. A segment's file
    may be deleted later than its records."""
    for tp, one in before.items():
        if now[tp].log_start_offset != one.log_start_offset or now[tp].segment_count < one.segment_count:
            return None
    return rate({tp: one.size_bytes for tp, one in before.items()}, {tp: one.size_bytes for tp, one in now.items()}, elapsed_ms)


def _committed_of(group: DescribeGroupResponse) -> dict[TopicIdPartition, int]:
    return {partition_of(one.committed): one.committed.offset for one in group.partitions if one.committed.offset >= 0}


def _topic(topic: TopicDescription, partitions_before: Partitions, elapsed_ms: int) -> Row:
    now = _partitions_of(topic)
    before = {tp: partitions_before[tp] for tp in now if tp in partitions_before}
    ends_before, ends = ({tp: one.high_watermark for tp, one in partitions.items()} for partitions in (before, now))
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "offsets": sum_of_known(map(offset_count, topic.partitions)),
        "offsets_per_s": rate(ends_before, ends, elapsed_ms),
        "bytes_per_s": _written_per_s(before, now, elapsed_ms),
        "size_bytes": sum_of_known(one.size_bytes for one in topic.partitions),
        "held_back": sum_of_known(map(undecided_count, topic.partitions)),
        "unhealthy": sum(one.HasField("error") for one in topic.partitions),
        "unknown": len(topic.partitions) - len(now),
    }


def _group(group: DescribeGroupResponse, before: Offsets, elapsed_ms: int) -> Row:
    return {
        "group_id": group.group.group_id,
        "partitions": len(group.partitions),
        "lag": sum_of_known(map(lag_of, group.partitions)),
        "lag_bytes": sum_of_known(one.lag_bytes for one in group.partitions),
        "lag_ms": max((one.lag_ms for one in group.partitions if one.lag_ms >= 0), default=None),
        "offsets_per_s": rate(before, _committed_of(group), elapsed_ms),
        "unknown": sum(map(_is_lag_unknown, group.partitions)),
    }


def _is_lag_unknown(one: GroupPartitionDescription) -> bool:
    """True if a partition's lag is unknown in offsets, bytes or time; a lag of 0 offsets has no time."""
    return min(lag_of(one), one.lag_bytes) < 0 or (lag_of(one) > 0 and one.lag_ms < 0)


def _transaction(one: TransactionListing) -> Row:
    return {
        "transactional_id": one.transactional_id,
        "state": state_name(one.state),
        "open_members": one.open_members,
        "age_ms": known(one.age_ms),
        "owner": one.owner,
    }


# --- text


def rate_text(per_s: float) -> str:
    """A rate for people, with one decimal below ten."""
    return f"{per_s:.1f}" if 0 < per_s < 10 else f"{per_s:.0f}"


# Columns of a table: heading, name of the value, and its text (None: the value itself). A narrow terminal cuts the last ones.
_Column = tuple[str, str, Callable[[Any], str] | None]
_SUMS = {"offsets", "size_bytes", "held_back", "lag", "lag_bytes", "lag_ms"}  # over partitions, some of which may be unknown
_TOPICS: Sequence[_Column] = (
    ("TOPIC", "topic", None),
    ("OFFSETS", "offsets", None),
    ("OFFSETS/S", "offsets_per_s", rate_text),
    ("SIZE", "size_bytes", size_text),
    ("PARTITIONS", "partitions", None),
    ("NOT HEALTHY", "unhealthy", None),
    ("HELD BACK", "held_back", None),
    ("BYTES/S", "bytes_per_s", lambda per_s: size_text(round(per_s))),
)
_GROUPS: Sequence[_Column] = (
    ("GROUP", "group_id", None),
    ("LAG", "lag", None),
    ("BEHIND", "lag_ms", duration_text),
    ("OFFSETS/S", "offsets_per_s", rate_text),
    ("TO READ", "lag_bytes", size_text),
    ("PARTITIONS", "partitions", None),
)
_TRANSACTIONS: Sequence[_Column] = (
    ("TRANSACTION", "transactional_id", None),
    ("AGE", "age_ms", duration_text),
    ("STATE", "state", None),
    ("MEMBERS", "open_members", None),
    ("OWNER", "owner", None),
)


def lines_of(screen: Screen, address: str, *, width: int = sys.maxsize, height: int = sys.maxsize) -> list[str]:
    """The screen as at most `height` lines. Lines may be wider than `width`, but names leave room for the numbers beside them."""
    version = f" {screen['version']}" if screen["version"] else ""
    lines = [f"brokerd{version} at {address}, {time_text(screen['time_ms'])}"]
    if screen["unreachable_since_ms"] is not None:
        lines.append(f"unreachable since {time_text(screen['unreachable_since_ms'])}: {screen['problem']}")
    lines.append("")
    if not screen["version"]:
        return lines[:height]
    parts = [("topic", _TOPICS, screen["topics"]), ("group", _GROUPS, screen["groups"])]
    if screen["transactions"]:
        parts.append(("open transaction", _TRANSACTIONS, screen["transactions"]))
    room = height - len(lines) - _LINES_OF_A_TABLE * len(parts)
    for (noun, columns, rows), shown in zip(parts, equal_shares([len(rows) for _, _, rows in parts], room), strict=True):
        count = screen["group_count"] if rows is screen["groups"] else len(rows)
        lines.append(counted(count, noun) + (f", {shown} shown" if shown < count else ""))
        if shown:
            cells = [_cells(columns, row, max(_NAME_MIN_WIDTH, width // 3)) for row in rows[:shown]]
            lines += table([heading for heading, _, _ in columns], cells).splitlines()
        lines.append("")
    return lines[:height]


def _cells(columns: Sequence[_Column], row: Row, name_width: int) -> list[object]:
    (_, name, _), *others = columns
    cells: list[object] = [row[name] if len(row[name]) <= name_width else row[name][: name_width - 3] + "..."]
    for _, name, text in others:
        cell = NONE if row[name] is None else row[name] if text is None else text(row[name])
        cells.append(at_least(cell, is_partial=name in _SUMS and row[name] is not None and row["unknown"] > 0))
    return cells
