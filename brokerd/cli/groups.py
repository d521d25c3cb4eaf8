"""`brokerd groups`: list, describe, reset, delete."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brokerd.cli.output import NONE, dashed, duration_text, known, show, size_text, table, time_text, topic_text
from brokerd.cli.parser import checked, client_config, connect, usage_error
from brokerd.cli.topic_lookup import check_partition, find_topic
from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import offsets_at, parse_timestamp
from brokerd.client.groups import OffsetAndMetadata, lag_of, partition_of
from brokerd.client.io.response_checks import error_in
from brokerd.client.offsets import READ_COMMITTED, OffsetSpec, Wanted
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError, UnknownGroupError, counted
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupListing, GroupPartitionDescription
from brokerd.wire.v1.transaction_pb2 import HangingTransaction

_METADATA_MAX_CHARACTERS = 40
_DIGITS_MAX = len(str(INT32_MAX))  # Python refuses to read thousands

_Named = Mapping[TopicIdPartition, str]  # partitions and the names of their topics


def list_groups(args: argparse.Namespace) -> None:
    """Prints one line per group."""
    with connect(args) as client:
        groups = client.list_groups(args.prefix)
    show(args, [_listing(group) for group in groups], _listing_lines(groups))


def _listing_lines(groups: Sequence[GroupListing]) -> Iterator[str]:
    if not groups:
        yield "no groups: there are none that you may see, or none of this prefix"
        return
    rows = [(one.group_id, one.partitions, time_text(one.commit_timestamp), one.principal) for one in groups]
    yield table(("GROUP", "PARTITIONS", "LAST COMMIT", "OWNER"), rows)


def _listing(group: GroupListing) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "principal": group.principal,
        "partition_count": group.partitions,
        "commit_timestamp": known(group.commit_timestamp),
    }


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
    lag, lag_bytes = sum(max(0, lag_of(one)) for one in partitions), sum(max(0, one.lag_bytes) for one in partitions)
    yield f"group {listing.group_id} of {listing.principal}: {counted(len(partitions), 'partition')}, lag {lag}"
    if not partitions:
        return
    rows = [_row(one) for one in partitions]
    yield table(("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "SIZE", "BEHIND", "COMMITTED", "METADATA"), rows, indent="  ")
    yield f"  {size_text(lag_bytes)} left to read"
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
        NONE if one.lag_bytes < 0 else size_text(one.lag_bytes),
        NONE if one.lag_ms < 0 else duration_text(one.lag_ms),
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
        "topic_id": one.committed.topic_id.hex(),
        "partition": one.committed.partition,
        "offset": known(one.committed.offset),
        "log_start_offset": known(one.log_start_offset),
        "end_offset": known(one.end_offset),
        "lag": known(lag_of(one)),
        "lag_bytes": known(one.lag_bytes),
        "lag_ms": known(one.lag_ms),
        "leader_epoch": known(one.committed.leader_epoch),
        "metadata": one.committed.metadata,
        "commit_timestamp": known(one.committed.commit_timestamp),
        "error": str(error_in(one.committed)) if one.committed.HasField("error") else None,
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


class Target(NamedTuple):
    """Where to reset offsets: to an end of the log or a time (`wanted`), to the offset `exact`, or by `shift` offsets from the
    committed one."""

    wanted: Wanted | None = None
    exact: int | None = None
    shift: int | None = None


class Bounds(NamedTuple):
    """One partition: its ends, the committed offset (-1: none), and the offset of the requested time (-1: no record that
    new)."""

    log_start_offset: int
    end_offset: int
    committed: int = -1
    at_time: int = -1


class NewOffset(NamedTuple):
    """The offset to commit, and the requested one, which may be outside the log."""

    offset: int
    asked: int


def new_offset(name: str, target: Target, bounds: Bounds) -> NewOffset:
    """The requested offset, moved into the log's range. Raises ConfigError if there is no committed offset to shift; `name` is the
    partition's."""
    if target.exact is not None:
        asked = target.exact
    elif target.shift is not None:
        if bounds.committed < 0:
            raise ConfigError(f"{name} has no committed offset that --shift-by could move: leave it out, or use --to-offset")
        asked = bounds.committed + target.shift
    elif target.wanted is OffsetSpec.EARLIEST:
        asked = bounds.log_start_offset
    elif target.wanted is OffsetSpec.LATEST or bounds.at_time < 0:
        asked = bounds.end_offset
    else:
        asked = bounds.at_time
    return NewOffset(min(max(asked, bounds.log_start_offset), bounds.end_offset), asked)


class Reset(NamedTuple):
    """One partition of a reset: the committed offset (-1: none), and the new one."""

    topic: str
    partition: int
    before: int
    after: NewOffset


def reset_group(args: argparse.Namespace) -> None:
    """Sets a group's offsets; with --dry-run, only prints them."""
    config = client_config(args, ConsumerConfig)
    target = _target(args)
    with connect(args, config) as client:
        named = _selected(client, args)
        bounds = _bounds(client, args.group_id, named, target, config.isolation_level)
        new = {tp: new_offset(f"{name}-{tp.partition}", target, bounds[tp]) for tp, name in named.items()}
        if not args.dry_run:
            refused = client.commit_group_offsets(args.group_id, {tp: OffsetAndMetadata(one.offset) for tp, one in new.items()})
            for error in refused.values():
                raise error
    resets = [Reset(name, tp.partition, bounds[tp].committed, new[tp]) for tp, name in named.items()]
    document = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": known(one.before),
            "new_offset": one.after.offset,
            "asked_offset": one.after.asked,
        }
        for one in resets
    ]
    show(args, document, _reset_lines(args, resets))


def _reset_lines(args: argparse.Namespace, resets: Sequence[Reset]) -> Iterator[str]:
    yield f"{'would set' if args.dry_run else 'set'} group {args.group_id} in {counted(len(resets), 'partition')}"
    rows = [(one.topic, one.partition, dashed(one.before), one.after.offset) for one in resets]
    yield table(("TOPIC", "PARTITION", "OFFSET", "NEW OFFSET"), rows, indent="  ")
    for one in resets:
        offset, asked = one.after
        if asked != offset:
            yield f"  {one.topic}-{one.partition}: offset {asked} lies outside of the log, the nearest is {offset}"


def _target(args: argparse.Namespace) -> Target:
    for option, value in (("--to-offset", args.to_offset), ("--shift-by", args.shift_by)):
        if value is not None and (abs(value) > INT64_MAX or (option == "--to-offset" and value < 0)):
            raise usage_error(args, f"{option} is {value}, but offsets lie between 0 and {INT64_MAX}")
    if args.to_earliest or args.to_latest:
        return Target(OffsetSpec.EARLIEST if args.to_earliest else OffsetSpec.LATEST)
    if args.to_timestamp is not None:
        now_ms = SystemClock().wall_ms()
        return Target(wanted=checked(args, lambda: parse_timestamp("--to-timestamp", args.to_timestamp, now_ms=now_ms)))
    return Target(exact=args.to_offset, shift=args.shift_by)


def _selected(client: BlockingClient, args: argparse.Namespace) -> _Named:
    """The partitions to reset: those of --topic, or all with a committed offset. Raises UnknownGroupError."""
    if args.topic:
        return _named(client, args)
    tps = list(client.group_offsets(args.group_id))
    if not tps:
        raise UnknownGroupError(f"group '{args.group_id}' has no offsets: name the topics to set, with --topic")
    names = {topic.topic_id: topic.name for topic in client.metadata_by_id(sorted({tp.topic_id for tp in tps})).topics.values()}
    return _sorted({tp: names[tp.topic_id] for tp in tps if tp.topic_id in names})


def _named(client: BlockingClient, args: argparse.Namespace) -> _Named:
    named: dict[TopicIdPartition, str] = {}
    for text in args.topic:
        name, partitions = checked(args, lambda text=text: parse_selection(text))  # type: ignore[misc]
        topic = find_topic(client, name)
        for partition in range(topic.partition_count) if partitions is None else partitions:
            check_partition(topic, partition)
            named[TopicIdPartition(topic.topic_id, partition)] = topic.name
    return _sorted(named)


def _sorted(named: _Named) -> _Named:
    return dict(sorted(named.items(), key=lambda item: (item[1], item[0])))


def parse_selection(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parses TOPIC (partitions None = all) or TOPIC:N,N. Raises ConfigError."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.isascii() and part.isdecimal() and len(part) <= _DIGITS_MAX for part in parts):
        raise ConfigError(f"--topic takes TOPIC or TOPIC:PARTITION[,PARTITION], such as events:0,1, not '{text:.200}'")
    return topic, tuple(dict.fromkeys(int(part) for part in parts))


def _bounds(client: BlockingClient, group_id: str, named: _Named, target: Target, isolation: str) -> dict[TopicIdPartition, Bounds]:
    tps = list(named)
    committed = client.group_offsets(group_id, tps)
    first = offsets_at(client, tps, OffsetSpec.EARLIEST, isolation)
    end = offsets_at(client, tps, OffsetSpec.LATEST, isolation)
    at_time = offsets_at(client, tps, target.wanted, isolation) if isinstance(target.wanted, int) else {}
    held = {tp: one.offset for tp, one in committed.items() if isinstance(one, OffsetAndMetadata)}
    return {tp: Bounds(first[tp], end[tp], held.get(tp, -1), at_time.get(tp, -1)) for tp in tps}


def _with_nearest(client: BlockingClient, group_id: str) -> UnknownGroupError:
    """The error for an unknown group; it suggests the nearest one."""
    existing = [group.group_id for group in client.list_groups()]
    hint = did_you_mean(group_id, existing, otherwise="'brokerd groups list' prints those that you may see")
    return UnknownGroupError(f"there is no group '{group_id}': {hint}")
