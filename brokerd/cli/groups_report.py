"""Prints groups, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from brokerd.cli.group_reset import NewOffset
from brokerd.cli.output import duration_text, print_json, size_text, table, time_text
from brokerd.client.group_offsets import GroupDescription, GroupListing, GroupPartition
from brokerd.client.transactions import HangingTransaction
from brokerd.errors import counted

_NONE = "-"
_METADATA_MAX_CHARACTERS = 40


class Reset(NamedTuple):
    """One partition of a reset: what was committed (-1: nothing), and what is now."""

    topic: str
    partition: int
    before: int
    after: NewOffset


def print_list(groups: Sequence[GroupListing], *, as_json: bool) -> None:
    """One line per group."""
    if as_json:
        print_json([_listing(group) for group in groups])
    elif not groups:
        print("no groups: there are none that you may see, or none of this prefix")
    else:
        rows = [(one.group_id, one.partitions, time_text(one.commit_timestamp), one.principal) for one in groups]
        print(table(("GROUP", "PARTITIONS", "LAST COMMIT", "OWNER"), rows))


def print_description(described: GroupDescription, held_back: Iterable[HangingTransaction], *, as_json: bool) -> None:
    """One line per partition, and the sums; and which transactions hold back its readers of committed records."""
    holders = {one.partition.tp: one for one in held_back}
    if as_json:
        found = [_partition(one) | {"held_back_by": _holder(holders.get(one.tp))} for one in described.partitions]
        print_json({**_listing(described.listing), "partitions": found})
        return
    partitions = described.partitions
    lag, lag_bytes = sum(max(0, one.lag) for one in partitions), sum(max(0, one.lag_bytes) for one in partitions)
    listing = described.listing
    print(f"group {listing.group_id} of {listing.principal}: {counted(len(partitions), 'partition')}, lag {lag}")
    if not partitions:
        return
    rows = [_row(one) for one in partitions]
    print(table(("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "SIZE", "BEHIND", "COMMITTED", "METADATA"), rows, indent="  "))
    print(f"  {size_text(lag_bytes)} left to read")
    for topic, numbers in _unread(partitions).items():
        print(
            f"  {topic}: nobody of this group has committed an offset of {counted(len(numbers), 'partition')} "
            f"({_short(', '.join(map(str, numbers)))}); LAG counts all of them: have a reader assign() them"
        )
    for one in partitions:
        lost = one.log_start_offset - one.committed.offset
        if lost > 0 and one.committed.offset >= 0:
            print(f"  {_name(one)}: {counted(lost, 'offset')} below the log start {one.log_start_offset} are gone, unread")
        if one.error is not None:
            print(f"  {_name(one)}: {one.error}")
        holder = holders.get(one.tp)
        if holder is not None:
            since = duration_text(holder.idle_ms)
            print(
                f"  {_name(one)}: readers of committed records wait at {holder.partition.last_stable_offset} for the transaction "
                f"of '{_holder(holder) or '(not known any more)'}', silent there for {since}; what lies behind is not in the lag"
            )


def print_reset(group_id: str, resets: Sequence[Reset], *, is_done: bool, as_json: bool) -> None:
    """One line per partition."""
    if as_json:
        print_json([_reset(one) for one in resets])
        return
    print(f"{'set' if is_done else 'would set'} group {group_id} in {counted(len(resets), 'partition')}")
    rows = [(one.topic, one.partition, _number(one.before), one.after.offset) for one in resets]
    print(table(("TOPIC", "PARTITION", "OFFSET", "NEW OFFSET"), rows, indent="  "))
    for one in resets:
        offset, asked = one.after
        if asked != offset:
            print(f"  {one.topic}-{one.partition}: offset {asked} lies outside of the log, the nearest is {offset}")


def print_deleted(group_id: str, count: int, *, is_whole: bool, as_json: bool) -> None:
    """How many offsets are forgotten."""
    if as_json:
        print_json({"group_id": group_id, "deleted_offsets": count})
    elif is_whole:
        print(f"deleted group '{group_id}' with {counted(count, 'offset')}")
    else:
        print(f"deleted {counted(count, 'offset')} of group '{group_id}'")


def _row(one: GroupPartition) -> tuple[object, ...]:
    return (
        one.topic or f"(id {one.tp.topic_id.hex()})",
        one.tp.partition,
        _number(one.committed.offset),
        _number(one.end_offset),
        _number(one.lag),
        _NONE if one.lag_bytes < 0 else size_text(one.lag_bytes),
        _NONE if one.lag_ms < 0 else duration_text(one.lag_ms),
        time_text(one.committed.commit_timestamp),
        _short(one.committed.metadata) or _NONE,
    )


def _unread(partitions: Sequence[GroupPartition]) -> dict[str, list[int]]:
    """Partitions without a committed offset, by topic."""
    unread: dict[str, list[int]] = {}
    for one in partitions:
        if one.committed.offset < 0:
            unread.setdefault(one.topic, []).append(one.tp.partition)
    return unread


def _short(text: str) -> str:
    return text if len(text) <= _METADATA_MAX_CHARACTERS else text[: _METADATA_MAX_CHARACTERS - 3] + "..."


def _holder(holder: HangingTransaction | None) -> str | None:
    return (holder.transactional_id or None) if holder is not None else None


def _name(one: GroupPartition) -> str:
    return f"{one.topic or one.tp.topic_id.hex()}-{one.tp.partition}"


def _number(value: int) -> object:
    return _NONE if value < 0 else value


def _known(value: int) -> int | None:
    """None where the wire has -1 for unknown."""
    return None if value < 0 else value


def _listing(group: GroupListing) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "principal": group.principal,
        "partition_count": group.partitions,
        "commit_timestamp": _known(group.commit_timestamp),
    }


def _partition(one: GroupPartition) -> dict[str, Any]:
    return {
        "topic": one.topic or None,
        "topic_id": one.tp.topic_id.hex(),
        "partition": one.tp.partition,
        "offset": _known(one.committed.offset),
        "log_start_offset": _known(one.log_start_offset),
        "end_offset": _known(one.end_offset),
        "lag": _known(one.lag),
        "lag_bytes": _known(one.lag_bytes),
        "lag_ms": _known(one.lag_ms),
        "leader_epoch": _known(one.committed.leader_epoch),
        "metadata": one.committed.metadata,
        "commit_timestamp": _known(one.committed.commit_timestamp),
        "error": None if one.error is None else str(one.error),
    }


def _reset(one: Reset) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": _known(one.before),
        "new_offset": one.after.offset,
        "asked_offset": one.after.asked,
    }
