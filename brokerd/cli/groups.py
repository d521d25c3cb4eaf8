"""`brokerd groups`: list, describe, reset, delete."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brokerd.arguments import OffsetAndMetadata
from brokerd.cli.output import (
    NONE,
    dashed,
    duration_text,
    fields,
    known,
    not_counted,
    show,
    size_text,
    sum_of_known,
    table,
    time_text,
    topic_text,
)
from brokerd.cli.parser import checked, client_config, connect, usage_error
from brokerd.cli.topic_lookup import find_topic, named_partitions
from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import Bound, LogBounds, Named, log_bounds, offset_of, parse_timestamp
from brokerd.client.groups import lag_of, partition_of
from brokerd.client.offsets import READ_COMMITTED, GivenOffset, OffsetSpec
from brokerd.client.response_checks import error_in
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT64_MAX, is_number
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError, TopicAuthorizationFailedError, UnknownGroupError, WireError, counted
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupListing, GroupPartitionDescription
from brokerd.wire.v1.transaction_pb2 import HangingTransaction

_METADATA_MAX_CHARACTERS = 40


def list_groups(args: argparse.Namespace) -> None:
    """Prints one line per group."""
    with connect(args) as client:
        groups = client.list_groups(args.prefix)
    show(args, [_listing(group) for group in groups], _listing_lines(groups))


def _listing_lines(groups: Sequence[GroupListing]) -> Iterator[str]:
    if not groups:
        yield "no groups that you may see have this prefix"
        return
    rows = [(one.group_id, one.partitions, time_text(one.commit_timestamp), one.principal) for one in groups]
    yield table(("GROUP", "PARTITIONS", "LAST COMMIT", "OWNER"), rows)


def _listing(group: GroupListing) -> dict[str, Any]:
    return fields(group, "group_id principal commit_timestamp") | {"partition_count": group.partitions}


def describe_group(args: argparse.Namespace) -> None:
    """Prints the offsets and lag of each partition, and the transactions that hold back readers of committed records."""
    config = client_config(args, ConsumerConfig)
    with connect(args, config) as client:
        try:
            described = client.describe_group(args.group_id, config.isolation_level)
        except UnknownGroupError:
            raise _with_nearest(client, args.group_id) from None
        held_back = client.find_hanging_transactions(0).transactions if config.isolation_level == READ_COMMITTED else ()
    holders = {TopicIdPartition(one.partition.topic_id, one.partition.partition): one for one in held_back}
    found = [_partition(one) | {"held_back_by": _holder(holders.get(partition_of(one.committed)))} for one in described.partitions]
    show(args, {**_listing(described.group), "partitions": found}, _description_lines(described, holders))


def _description_lines(described: DescribeGroupResponse, holders: Mapping[TopicIdPartition, HangingTransaction]) -> Iterator[str]:
    partitions, listing = described.partitions, described.group
    lag, sizes = sum_of_known(map(lag_of, partitions)) or 0, [one.lag_bytes for one in partitions]
    unknown = sum(lag_of(one) < 0 for one in partitions)
    more = f" and that of {counted(unknown, 'partition')} whose end is unknown" if unknown else ""
    yield f"group {listing.group_id} of {listing.principal}: {counted(len(partitions), 'partition')}, lag {lag}{more}"
    if not partitions:
        return
    rows = [_row(one) for one in partitions]
    yield table(("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "SIZE", "BEHIND", "COMMITTED", "METADATA"), rows, indent="  ")
    yield f"  {size_text(sum_of_known(sizes) or 0)} left to read{not_counted(sizes)}"
    for topic, numbers in _unread(partitions).items():
        yield (
            f"  {topic}: no reader of this group has committed an offset of {counted(len(numbers), 'partition')} "
            f"({_short(', '.join(map(str, numbers)))}); LAG counts all of them: have a reader assign() them"
        )
    for one in partitions:
        lost = one.log_start_offset - one.committed.offset
        if lost > 0 and one.committed.offset >= 0:
            yield f"  {_name(one)}: {counted(lost, 'offset')} below the log start {one.log_start_offset} are gone, unread"
        if one.committed.HasField("error"):
            yield f"  {_name(one)}: {error_in(one.committed)}"
        holder = holders.get(partition_of(one.committed))
        if holder is not None:
            yield (
                f"  {_name(one)}: readers of committed records wait at {holder.partition.last_stable_offset} for the transaction "
                f"of '{_holder(holder) or '(unknown)'}', silent there for {duration_text(holder.idle_ms)}; records after that "
                "offset are not in the lag"
            )


def _row(one: GroupPartitionDescription) -> tuple[object, ...]:
    return (
        topic_text(one.topic, one.committed.topic_id),
        one.committed.partition,
        dashed(one.committed.offset),
        dashed(one.end_offset),
        dashed(lag_of(one)),
        size_text(one.lag_bytes),
        duration_text(one.lag_ms),
        time_text(one.committed.commit_timestamp),
        _short(one.committed.metadata) or NONE,
    )


def _unread(partitions: Iterable[GroupPartitionDescription]) -> dict[str, list[int]]:
    """Partitions without a committed offset, by topic."""
    unread: dict[str, list[int]] = {}
    for one in partitions:
        if one.committed.offset < 0:
            unread.setdefault(one.topic, []).append(one.committed.partition)
    return unread


def _short(text: str) -> str:
    return text if len(text) <= _METADATA_MAX_CHARACTERS else text[: _METADATA_MAX_CHARACTERS - 3] + "..."


def _holder(holder: HangingTransaction | None) -> str | None:
    return (holder.transactional_id or None) if holder is not None else None


def _name(one: GroupPartitionDescription) -> str:
    return f"{one.topic or one.committed.topic_id.hex()}-{one.committed.partition}"


def _partition(one: GroupPartitionDescription) -> dict[str, Any]:
    return {
        "topic": one.topic or None,
        **fields(one.committed, "topic_id partition offset leader_epoch metadata commit_timestamp error"),
        **fields(one, "log_start_offset end_offset lag_bytes lag_ms"),
        "lag": known(lag_of(one)),
    }


def delete_group(args: argparse.Namespace) -> None:
    """Deletes a group, or its offsets in some topics."""
    with connect(args) as client:
        tps = list(_named(client, args)) if args.topic else []
        try:
            count = client.delete_group(args.group_id, tps)
        except UnknownGroupError:
            raise _with_nearest(client, args.group_id) from None
    offsets = counted(count, "offset")
    text = f"deleted {offsets} of group '{args.group_id}'" if args.topic else f"deleted group '{args.group_id}' with {offsets}"
    show(args, {"group_id": args.group_id, "deleted_offsets": count}, [text])


class Shift(NamedTuple):
    """A reset by this many offsets from the committed one."""

    offsets: int


class Reset(NamedTuple):
    """One partition of a reset: the committed offset (-1: none), the new one, and the requested one, which may lie outside the
    log."""

    topic: str
    partition: int
    before: int
    after: int
    asked: int


def reset_of(topic: str, partition: int, target: Bound | Shift, log: LogBounds, committed: int) -> Reset:
    """The reset of one partition, clamped to the log's range. Raises ConfigError if there is no committed offset to shift."""
    if isinstance(target, Shift):
        if committed < 0:
            raise ConfigError(
                f"{topic}-{partition} has no committed offset that --shift-by could move: leave it out, or use --to-offset"
            )
        asked = committed + target.offsets
    else:
        asked = offset_of(target, log)
    return Reset(topic, partition, committed, min(max(asked, log.earliest), log.latest), asked)


def reset_group(args: argparse.Namespace) -> None:
    """Sets a group's offsets; with --dry-run, only prints them. If some are refused, raises the first error after the output."""
    config = client_config(args, ConsumerConfig)
    target = _target(args)
    with connect(args, config) as client:
        named = _selected(client, args)
        committed = client.group_offsets(args.group_id, list(named))
        held = {tp: one.offset for tp, one in committed.items() if isinstance(one, OffsetAndMetadata)}
        if isinstance(target, Shift) and (lost := next((one for one in committed.values() if isinstance(one, WireError)), None)):
            raise lost
        logs = log_bounds(client, named, OffsetSpec.LATEST if isinstance(target, Shift) else target, config.isolation_level)
        resets = {tp: reset_of(name, tp.partition, target, logs[tp], held.get(tp, -1)) for tp, name in named.items()}
        refused: dict[TopicIdPartition, WireError] = {}
        if args.dry_run:
            refused |= {tp: one for tp, one in committed.items() if isinstance(one, TopicAuthorizationFailedError)}
        else:
            refused |= client.commit_group_offsets(args.group_id, {tp: OffsetAndMetadata(one.after) for tp, one in resets.items()})
        resets = {tp: one for tp, one in resets.items() if tp not in refused}
    keys = ("topic", "partition", "offset", "new_offset", "asked_offset")
    document = [dict(zip(keys, one, strict=True)) | {"offset": known(one.before)} for one in resets.values()]
    show(args, document, _reset_lines(args, list(resets.values())))
    for error in refused.values():
        raise error


def _reset_lines(args: argparse.Namespace, resets: Sequence[Reset]) -> Iterator[str]:
    yield f"{'would set' if args.dry_run else 'set'} group {args.group_id} in {counted(len(resets), 'partition')}"
    rows = [(one.topic, one.partition, dashed(one.before), one.after) for one in resets]
    yield table(("TOPIC", "PARTITION", "OFFSET", "NEW OFFSET"), rows, indent="  ")
    for one in resets:
        if one.asked != one.after:
            yield f"  {one.topic}-{one.partition}: offset {one.asked} lies outside of the log, the nearest is {one.after}"


def _target(args: argparse.Namespace) -> Bound | Shift:
    for option, value in (("--to-offset", args.to_offset), ("--shift-by", args.shift_by)):
        if value is not None and (abs(value) > INT64_MAX or (option == "--to-offset" and value < 0)):
            raise usage_error(args, f"{option} is {value}, but offsets lie between 0 and {INT64_MAX}")
    if args.to_earliest or args.to_latest:
        return OffsetSpec.EARLIEST if args.to_earliest else OffsetSpec.LATEST
    if args.to_timestamp is not None:
        now_ms = SystemClock().wall_ms()
        return checked(args, lambda: parse_timestamp("--to-timestamp", args.to_timestamp, now_ms=now_ms))
    return Shift(args.shift_by) if args.to_offset is None else GivenOffset(args.to_offset)


def _selected(client: BlockingClient, args: argparse.Namespace) -> Named:
    """The partitions to reset: those of --topic, or all with a committed offset. Raises UnknownGroupError."""
    if args.topic:
        return _named(client, args)
    tps = list(client.group_offsets(args.group_id))
    if not tps:
        raise UnknownGroupError(f"group '{args.group_id}' has no offsets: name the topics to set, with --topic")
    names = {topic.topic_id: topic.name for topic in client.metadata_by_id(sorted({tp.topic_id for tp in tps})).topics.values()}
    return _sorted({tp: names[tp.topic_id] for tp in tps if tp.topic_id in names})


def _named(client: BlockingClient, args: argparse.Namespace) -> Named:
    named: dict[TopicIdPartition, str] = {}
    for text in args.topic:
        name, partitions = checked(args, lambda text=text: parse_selection(text))  # type: ignore[misc]
        named |= named_partitions([find_topic(client, name)], partitions)
    return _sorted(named)


def _sorted(named: Named) -> Named:
    return dict(sorted(named.items(), key=lambda item: (item[1], item[0])))


def parse_selection(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parses TOPIC (partitions None = all) or TOPIC:N,N. Raises ConfigError."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(is_number(part, INT64_MAX) for part in parts):
        raise ConfigError(f"--topic takes TOPIC or TOPIC:PARTITION[,PARTITION], such as events:0,1, not '{text:.200}'")
    return topic, tuple(dict.fromkeys(int(part) for part in parts))


def _with_nearest(client: BlockingClient, group_id: str) -> UnknownGroupError:
    """The error for an unknown group; it suggests the nearest one."""
    existing = [group.group_id for group in client.list_groups()]
    hint = did_you_mean(group_id, existing, otherwise="'brokerd groups list' prints those that you may see")
    return UnknownGroupError(f"there is no group '{group_id}': {hint}")
