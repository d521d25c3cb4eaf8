"""`brokerd topics`: create, list, describe, alter, trim, delete. `brokerd offsets`: log start and end of partitions, and offsets by
time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brokerd.cli.output import (
    dashed,
    fields,
    listed,
    not_counted,
    note,
    placed,
    raise_all,
    show,
    size_text,
    sum_of_known,
    sum_text,
    table,
    time_text,
)
from brokerd.cli.parser import check_range, checked, client_config, connect, connect_to_change, pairs, usage_error
from brokerd.cli.topic_lookup import find_topic, find_topics, named_partitions, topic_patterns, with_nearest_name
from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import Bound, LogBounds, log_bounds, offset_of, offsets_at, parse_bound, parse_timestamp
from brokerd.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, LastRecords, OffsetAndTimestamp, OffsetSpec
from brokerd.client.response_checks import error_in
from brokerd.client.topics import offset_count
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX
from brokerd.config.topic import REPLICAS_MAX
from brokerd.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, WireError, counted
from brokerd.ids import NO_LEADER
from brokerd.wire.v1.metadata_pb2 import PartitionMetadata
from brokerd.wire.v1.topics_pb2 import NewTopic, PartitionDescription, TopicDescription


def create_topic(args: argparse.Namespace) -> None:
    """Creates a topic, or checks whether it can be created."""
    check_range(args, "--partitions", args.partitions, maximum=INT32_MAX)
    factor = args.replication_factor or 0
    if factor:
        check_range(args, "--replication-factor", factor, maximum=REPLICAS_MAX)
    configs = dict(pairs(args, "--config", args.config))
    new = NewTopic(name=args.name, partitions=args.partitions or 0, replication_factor=factor, configs=configs)
    with connect_to_change(args) as client:
        result = client.create_topics([new], validate_only=args.dry_run)[args.name]
        exists = isinstance(result, TopicAlreadyExistsError) and args.if_not_exists
        if isinstance(result, WireError) and not exists:
            raise result
        if args.dry_run and not exists:
            print(f"topic '{args.name}' can be created")
            return
        count = counted(client.metadata([args.name]).topic(args.name).partition_count, "partition")
        if not exists:
            _note_too_few_copies(client, args.name, configs)
    if exists:
        print(f"topic '{args.name}' already exists with {count}: nothing to do")
    else:
        print(f"created topic '{args.name}' with {count}" + (f", each on {counted(factor, 'node')}" if factor else ""))


def _note_too_few_copies(client: BlockingClient, name: str, configs: Mapping[str, str]) -> None:
    """Warns if a topic has fewer replicas than its new min.insync.replicas. As in Kafka this is allowed: replicas may be added."""
    if "min.insync.replicas" in configs:
        wanted = int(configs["min.insync.replicas"])
        found = [one for topic in client.describe_cluster([name]).topics for one in topic.partitions]
        count = min((len(one.replicas) for one in found), default=wanted)
        copies = "1 copy" if count == 1 else f"{count} copies"
        if count < wanted:
            note(f"topic '{name}' has {copies}, fewer than min.insync.replicas={wanted}: acks=all waits for all of them")


def list_topics(args: argparse.Namespace) -> None:
    """Prints one line per topic."""
    with connect(args) as client:
        if args.long:
            topics = _found(client.describe_topics())
            places = _Places(client, [topic.name for topic in topics])
            show(args, [_document(topic, places) for topic in topics], _long_lines(topics, places))
        else:
            names = sorted(client.metadata(None).topics)
            show(args, names, names)


class _Places:
    """Leaders and replicas of the topics' partitions. Tables show them only if the cluster has several nodes."""

    def __init__(self, client: BlockingClient, names: Sequence[str]) -> None:
        cluster = client.describe_cluster(names)
        self.are_several = len(cluster.nodes) > 1
        self._partitions = {(topic.name, one.partition): one for topic in cluster.topics for one in topic.partitions}

    def of(self, topic: str, partition: int) -> PartitionMetadata:
        """Leader and replicas of a partition; none if the topic was deleted meanwhile."""
        return self._partitions.get((topic, partition), PartitionMetadata(partition=partition, leader=NO_LEADER))


def _long_lines(topics: Sequence[TopicDescription], places: _Places) -> Iterator[str]:
    copies = ("REPLICAS", "BEHIND") if places.are_several else ()
    rows = [
        (
            one.name,
            len(one.partitions),
            *(_copies(one, places) if copies else ()),
            sum_text(_offset_counts(one)),
            sum_text(_sizes(one), size_text),
        )
        for one in topics
    ]
    yield table(("TOPIC", "PARTITIONS", *copies, "OFFSETS", "SIZE"), rows)


def _copies(topic: TopicDescription, places: _Places) -> tuple[object, int]:
    """The number of replicas per partition of a topic, and the number of partitions with a replica that is not in sync."""
    found = [places.of(topic.name, one.partition) for one in topic.partitions]
    counts = sorted({len(one.replicas) for one in found}) or [0]
    replicas = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return replicas, sum(len(one.isr) < len(one.replicas) for one in found)


def describe_topics(args: argparse.Namespace) -> None:
    """Prints partitions, offsets, sizes and settings of topics."""
    with connect(args) as client:
        results = client.describe_topics(args.names)
        for name, result in results.items():
            if isinstance(result, WireError):
                raise with_nearest_name(client, name, result)
        topics = _found(results)
        places = _Places(client, [topic.name for topic in topics])
    show(args, [_document(topic, places) for topic in topics], _description_lines(topics, places, all_configs=args.all_configs))


def _description_lines(topics: Sequence[TopicDescription], places: _Places, *, all_configs: bool) -> Iterator[str]:
    if not topics:
        yield "no topics yet: create one with 'brokerd topics create NAME --partitions N'"
    for number, topic in enumerate(topics):
        if number:
            yield ""
        yield from _described(topic, places, all_configs=all_configs)


def _described(topic: TopicDescription, places: _Places, *, all_configs: bool) -> Iterator[str]:
    offsets, sizes = _offset_counts(topic), _sizes(topic)
    counts = f"{counted(len(topic.partitions), 'partition')}, {counted(sum_of_known(offsets) or 0, 'offset')}"
    size = f"{size_text(sum_of_known(sizes) or 0)}{not_counted(offsets)}"
    yield f"topic {topic.name}: {counts}, {size}, id {topic.topic_id.hex()}"
    own = [entry for entry in topic.configs if not entry.is_default]
    if all_configs:
        rows = [(one.name, one.value, "broker" if one.is_default else "topic", one.documentation) for one in topic.configs]
        yield table(("SETTING", "VALUE", "SET FOR", "MEANING"), rows, indent="  ")
    elif own:
        yield "  set: " + ", ".join(f"{entry.name}={entry.value}" for entry in own)
    columns: tuple[str, ...] = ("PARTITION", "START", "STABLE", "END", "WRITTEN", "SIZE", "SEGMENTS", "PRODUCERS")
    partitions: list[tuple[object, ...]] = [
        (
            partition.partition,
            dashed(partition.log_start_offset),
            dashed(partition.last_stable_offset),
            dashed(partition.high_watermark),
            dashed(partition.log_end_offset),
            size_text(partition.size_bytes),
            dashed(partition.segment_count),
            dashed(partition.producer_count),
        )
        for partition in topic.partitions
    ]
    if places.are_several:
        columns += ("LEADER", "REPLICAS", "ISR")
        found = [places.of(topic.name, partition.partition) for partition in topic.partitions]
        where = [(dashed(one.leader), listed(one.replicas), listed(one.isr)) for one in found]
        partitions = [(*row, *place) for row, place in zip(partitions, where, strict=True)]
    yield table(columns, partitions, indent="  ")
    for partition in topic.partitions:
        if partition.HasField("error"):
            yield f"  partition {partition.partition} is not healthy: {error_in(partition)}"


_OF_PARTITION = (
    "partition log_start_offset last_stable_offset high_watermark log_end_offset size_bytes segment_count producer_count error"
)


def _document(topic: TopicDescription, places: _Places) -> dict[str, Any]:
    return {
        **fields(topic, "name topic_id"),
        "configs": {entry.name: fields(entry, "value is_default") for entry in topic.configs},
        "partitions": [
            {**fields(partition, _OF_PARTITION), **placed(places.of(topic.name, partition.partition))}
            for partition in topic.partitions
        ],
    }


def _offset_counts(topic: TopicDescription) -> list[int]:
    return list(map(offset_count, topic.partitions))


def _sizes(topic: TopicDescription) -> list[int]:
    return [partition.size_bytes for partition in topic.partitions]


def _found(results: dict[str, TopicDescription | WireError]) -> list[TopicDescription]:
    return [result for result in results.values() if not isinstance(result, WireError)]


def alter_topic(args: argparse.Namespace) -> None:
    """Adds partitions, or changes settings."""
    check_range(args, "--partitions", args.partitions, maximum=INT32_MAX)
    to_set = dict(pairs(args, "--config", args.config))
    if args.partitions is None and not to_set and not args.delete_config:
        raise usage_error(args, "nothing to change: give --partitions, --config or --delete-config")
    with connect_to_change(args) as client:
        before = find_topic(client, args.name).partition_count
        # Both changes are validated before either is applied, so that an invalid one leaves the topic unchanged.
        for validate_only in (True,) if args.dry_run else (True, False):
            if args.partitions is not None:
                client.create_partitions(args.name, args.partitions, validate_only=validate_only)
            if to_set or args.delete_config:
                client.alter_topic_configs(args.name, set_=to_set, unset=args.delete_config, validate_only=validate_only)
        if not args.dry_run:
            _note_too_few_copies(client, args.name, to_set)
    done = [] if args.partitions is None else [f"partitions {before} -> {args.partitions}"]
    done += [f"{name}={value}" for name, value in to_set.items()]
    done += [f"{name} as the broker's" for name in args.delete_config]
    print(f"{'could change' if args.dry_run else 'changed'} topic '{args.name}': {', '.join(done)}")


def delete_topics(args: argparse.Namespace) -> None:
    """Deletes topics and their records. Tries all topics, then reports every error."""
    failed: list[WireError] = []
    with connect_to_change(args) as client:
        for name, result in client.delete_topics(args.names).items():
            if not isinstance(result, WireError):
                print(f"deleted topic '{name}'")
            elif isinstance(result, UnknownTopicOrPartitionError) and args.if_exists:
                print(f"there is no topic '{name}': nothing to do")
            else:
                failed.append(with_nearest_name(client, name, result))
    raise_all(failed)


class Trim(NamedTuple):
    """One partition: the log start before and after the deletion, the requested offset, and the number of offsets below it that
    stay because their transactions are undecided."""

    partition: int
    before: int
    after: int
    asked: int
    undecided: int = 0

    @property
    def offset_count(self) -> int:
        """The number of deleted offsets."""
        return self.after - self.before


def trim_topic(args: argparse.Namespace) -> None:
    """Deletes the oldest records of a topic."""
    before = checked(args, lambda: parse_bound("--before", args.before, now_ms=SystemClock().wall_ms()))
    failed: list[WireError] = []
    with connect_to_change(args) as client:
        named = named_partitions([find_topic(client, args.name)], args.partition)
        # --before -N counts records as readers see them by default (read_committed).
        bounds = log_bounds(client, named, before, READ_COMMITTED if isinstance(before, LastRecords) else READ_UNCOMMITTED)
        decided = offsets_at(client, dict.fromkeys(named, OffsetSpec.LATEST), READ_COMMITTED)
        trims = {tp: planned(tp.partition, before, bounds[tp], decided[tp]) for tp in named}
        _refuse_beyond_all(args, max(bounds[tp].latest for tp in named), min(one.asked for one in trims.values()))
        wanted = {tp: one.after for tp, one in trims.items() if one.offset_count}
        for tp, result in (client.delete_records(wanted) if wanted and not args.dry_run else {}).items():
            if isinstance(result, WireError):
                name = f"{args.name}-{tp.partition}"
                if not result.message.startswith(name):
                    result.message = f"{name}: {result.message}"
                failed.append(result)
                del trims[tp]
            else:
                trims[tp] = trims[tp]._replace(after=result)
    keys = ("partition", "log_start_offset", "new_log_start_offset", "asked_offset", "undecided_offsets", "deleted_offsets")
    document = [dict(zip(keys, (*one, one.offset_count), strict=True)) for one in trims.values()]
    show(args, document, _trim_lines(args, list(trims.values())))
    raise_all(failed)


def _refuse_beyond_all(args: argparse.Namespace, end: int, asked: int) -> None:
    """Raises UsageError for an offset above the end of every partition: most likely a typo, it would delete all records."""
    if asked > end:
        raise usage_error(
            args,
            f"--before {args.before} lies above the end of the log in every partition, {end} at most, so no record would be left: "
            "give an offset up to there, or latest if that is meant; nothing was deleted",
        )


def planned(partition: int, before: Bound, log: LogBounds, decided: int) -> Trim:
    """The deletion of one partition up to `before`, within its log, and at most up to `decided`, the last stable offset."""
    asked = offset_of(before, log)
    nearest = min(max(asked, log.earliest), log.latest)
    after = max(log.earliest, min(nearest, decided))
    return Trim(partition, log.earliest, after, asked, nearest - after)


def _trim_lines(args: argparse.Namespace, trims: Sequence[Trim]) -> Iterator[str]:
    total = counted(sum(one.offset_count for one in trims), "offset")
    verb = "would delete" if args.dry_run else "deleted"
    yield f"{verb} {total} of topic '{args.name}' in {counted(len(trims), 'partition')}"
    rows = [(one.partition, one.before, one.after, one.offset_count) for one in trims]
    yield table(("PARTITION", "START", "NEW START", "OFFSETS"), rows, indent="  ")
    for one in trims:
        name = f"{args.name}-{one.partition}"
        if one.undecided:
            undecided = f"transactions are undecided from offset {one.after} on, so their records stay"
            yield f"  {name}: {undecided} (brokerd transactions find-hanging)"
        elif one.asked > one.after:
            yield f"  {name}: offset {one.asked} lies above the end of the log, {one.after}"


# --- offsets


class _Ends(NamedTuple):
    """One partition. `at_time` is None without --time, and an error if the lookup failed."""

    topic: str
    topic_id: bytes
    found: PartitionDescription
    at_time: OffsetAndTimestamp | WireError | None


def print_offsets(args: argparse.Namespace) -> None:
    """Prints one line per partition. Raises BrokerdError, UsageError; an error of --time is raised after the output."""
    now_ms = SystemClock().wall_ms()
    timestamp_ms = None if args.time is None else checked(args, lambda: parse_timestamp("--time", args.time, now_ms=now_ms))
    patterns = topic_patterns(args)
    config = client_config(args, ConsumerConfig)
    with connect(args, config) as client:
        topics = find_topics(client, args.topics, patterns)
        named = named_partitions(topics, args.partition)
        wanted = {} if timestamp_ms is None else dict.fromkeys(named, timestamp_ms)
        at_time = client.list_offsets(wanted, config.isolation_level, is_partial=True)
        described = client.describe_topics([topic.name for topic in topics])
    rows = []
    for tp, name in named.items():
        found = described[name]
        if isinstance(found, WireError):
            raise found
        rows.append(_Ends(name, tp.topic_id, found.partitions[tp.partition], at_time.get(tp)))
    show(args, [_ends_document(row) for row in rows], _ends_lines(rows, has_time=timestamp_ms is not None))
    for row in rows:
        if isinstance(row.at_time, WireError):
            raise row.at_time


def _ends_lines(rows: Sequence[_Ends], *, has_time: bool) -> Iterator[str]:
    headings = ("TOPIC", "PARTITION", "START", "STABLE", "END", "OFFSETS", "SIZE", *(("OFFSET", "RECORD TIME") if has_time else ()))
    yield table(headings, [_ends_cells(row) for row in rows])
    for row in rows:
        if row.found.HasField("error"):
            yield f"{row.topic}-{row.found.partition} is not healthy: {error_in(row.found)}"
    if len(rows) > 1:
        counts = [offset_count(row.found) for row in rows]
        total = sum_of_known(row.found.size_bytes for row in rows) or 0
        held = f"{counted(sum_of_known(counts) or 0, 'offset')}, {size_text(total)}"
        yield f"{held} in {counted(len(rows), 'partition')}{not_counted(counts)}"


def _ends_cells(row: _Ends) -> tuple[object, ...]:
    one = row.found
    numbers = (one.log_start_offset, one.last_stable_offset, one.high_watermark, offset_count(one))
    cells = (row.topic, one.partition, *map(dashed, numbers), size_text(one.size_bytes))
    if row.at_time is None:
        return cells
    if isinstance(row.at_time, WireError):
        return (*cells, "?", "?")
    return (*cells, dashed(row.at_time.offset), time_text(row.at_time.timestamp))


def _ends_document(row: _Ends) -> dict[str, Any]:
    names = "partition log_start_offset last_stable_offset high_watermark size_bytes error"
    document = {"topic": row.topic, "topic_id": row.topic_id.hex(), **fields(row.found, names)}
    if row.at_time is not None:
        found = row.at_time if not isinstance(row.at_time, WireError) and row.at_time.offset >= 0 else None
        document["offset_at_time"] = found.offset if found is not None else None
        document["timestamp"] = found.timestamp if found is not None else None
    return document
