"""Prints transactions, for people and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from brokerd.cli.output import duration_text, print_json, size_text, table
from brokerd.client.transactions import (
    NO_VERSION,
    ForgottenId,
    HangingTransaction,
    HangingTransactions,
    OpenMember,
    OpenPartition,
    TransactionDescription,
    TransactionListing,
)
from brokerd.errors import counted

_NONE = "-"
_NAMED_MAX = 2  # partitions


def print_list(listings: Sequence[TransactionListing], held_back: HangingTransactions, *, as_json: bool) -> None:
    """One line per transactional id, with the partitions that it holds back."""
    held: dict[str, list[OpenPartition]] = {}
    for one in held_back.transactions:
        held.setdefault(one.transactional_id, []).append(one.partition)
    if held_back.has_more:
        print(f"of the partitions that are held back, {len(held_back.transactions):,} are named", file=sys.stderr)
    if as_json:
        print_json(
            [
                _listing(listing) | {"holds_back": [_partition(one) for one in held.get(listing.transactional_id, ())]}
                for listing in listings
            ]
        )
        return
    if not listings:
        print("no transactional ids: there are none that you may see, or none of this prefix and state")
        return
    rows = [
        (
            one.transactional_id,
            one.state,
            _version(one.last_version),
            _version(one.txn_version),
            one.open_members,
            _age(one.age_ms),
            _named(held.get(one.transactional_id, ())),
            one.owner or _NONE,
        )
        for one in listings
    ]
    print(table(("TRANSACTIONAL ID", "STATE", "COMMITTED", "OPEN", "MEMBERS", "AGE", "HOLDS BACK", "OWNER"), rows))


def print_description(described: TransactionDescription, *, as_json: bool) -> None:
    """Prints the last commit, then open members and where each has written."""
    if as_json:
        print_json(_description(described))
        return
    listing = described.listing
    count = len(described.members) + described.more_members
    print(f"transactional id {listing.transactional_id}: {listing.state}, {counted(count, 'open member')}")
    print(f"  {_committed_text(described)}")
    if listing.state == "prepared":
        print(f"  version {listing.txn_version} is decided, and not visible everywhere yet: the broker goes on until it is")
    if described.members:
        print(table(("VERSION", "EXECUTION", "PRODUCER", "AGE", "EXPIRES IN", "OWNER"), _member_rows(described), indent="  "))
        rows = [
            (member.producer_id, _topic(partition), partition.tp.partition, partition.first_offset, partition.last_stable_offset)
            for member in described.members
            for partition in member.partitions
        ]
        print(table(("PRODUCER", "TOPIC", "PARTITION", "FROM", "STABLE"), rows, indent="  ") if rows else "  no data yet")
    if described.more_members:
        print(f"  and {counted(described.more_members, 'member')} more")


def print_abort(transactional_id: str, execution_id: str, ended: int, left: TransactionListing | None, *, as_json: bool) -> None:
    """How many members were ended, and what that means."""
    last_version = NO_VERSION if left is None else left.last_version
    if as_json:
        print_json({"transactional_id": transactional_id, "aborted_members": ended, "last_version": _number(last_version)})
        return
    stays = "no version of it is committed" if last_version == NO_VERSION else f"version {last_version} stays committed"
    if ended == 1:
        meaning = "what it wrote is void, and its task fails at its next batch"
    else:
        meaning = "what they wrote is void, and their tasks fail at their next batch"
    if ended:
        print(f"aborted {counted(ended, 'open member')} of transactional id '{transactional_id}': {meaning}; {stays}")
    else:
        where = f" in execution '{execution_id}'" if execution_id else ""
        print(f"transactional id '{transactional_id}' has no open member{where}: nothing to do; {stays}")


def print_forgotten(transactional_id: str, forgotten: ForgottenId, *, as_json: bool) -> None:
    """Names what was forgotten, and what that means."""
    last_version, principal = forgotten
    if as_json:
        print_json({"transactional_id": transactional_id, "principal": principal, "last_version": _number(last_version)})
        return
    if last_version == NO_VERSION:
        meaning = "it had committed nothing"
    else:
        meaning = f"it had committed version {last_version}, and whoever repeats that version or an older one writes it again"
    print(f"forgot transactional id '{transactional_id}' of principal '{principal}': {meaning}")


def print_hanging(found: HangingTransactions, idle_ms: int, *, as_json: bool) -> None:
    """One line per partition that is held back; on stderr, that there are more."""
    hanging = found.transactions
    if as_json:
        print_json([_hanging(one) for one in hanging])
    else:
        _print_hanging(hanging, idle_ms)
    if found.has_more:
        print(f"these are the {len(hanging):,} that have been silent longest; more partitions are held back", file=sys.stderr)


def _print_hanging(hanging: Sequence[HangingTransaction], idle_ms: int) -> None:
    if not hanging:
        print(f"no partition is held back by a transaction that wrote nothing there for {duration_text(idle_ms)}")
        return
    rows = [
        (
            _topic(one.partition),
            one.partition.tp.partition,
            one.partition.last_stable_offset,
            duration_text(one.idle_ms),
            _NONE if one.producer_id < 0 else one.producer_id,
            one.transactional_id or "(not known any more: aborted within ten seconds)",
        )
        for one in hanging
    ]
    print(table(("TOPIC", "PARTITION", "STABLE", "IDLE", "PRODUCER", "TRANSACTIONAL ID"), rows))


def _committed_text(described: TransactionDescription) -> str:
    if described.listing.last_version == NO_VERSION:
        return "nothing committed yet"
    totals = described.last_totals
    run = f", run {described.last_run_id}" if described.last_run_id else ""
    return (
        f"last committed: version {described.listing.last_version} in execution {described.last_execution_id}{run}: "
        f"{counted(totals.rows, 'row')}, keys {size_text(totals.key_bytes)}, values {size_text(totals.value_bytes)}"
    )


def _member_rows(described: TransactionDescription) -> list[tuple[object, ...]]:
    return [
        (
            member.txn_version,
            member.execution_id,
            member.producer_id,
            _age(member.age_ms),
            duration_text(member.expires_in_ms),
            member.owner or _NONE,
        )
        for member in described.members
    ]


def _version(version: int) -> str:
    return _NONE if version == NO_VERSION else str(version)


def _age(age_ms: int) -> str:
    return _NONE if age_ms < 0 else duration_text(age_ms)


def _named(partitions: Sequence[OpenPartition]) -> str:
    names = [f"{_topic(one)}-{one.tp.partition}" for one in partitions[:_NAMED_MAX]]
    if len(partitions) > _NAMED_MAX:
        names.append(f"and {len(partitions) - _NAMED_MAX} more")
    return " ".join(names) or _NONE


def _topic(partition: OpenPartition) -> str:
    return partition.topic or f"(id {partition.tp.topic_id.hex()})"


def _number(number: int) -> int | None:
    """None where the wire has -1 for none."""
    return None if number < 0 else number


def _listing(listing: TransactionListing) -> dict[str, Any]:
    return {
        "transactional_id": listing.transactional_id,
        "state": listing.state,
        "last_version": _number(listing.last_version),
        "txn_version": _number(listing.txn_version),
        "open_members": listing.open_members,
        "age_ms": _number(listing.age_ms),
        "owner": listing.owner,
    }


def _description(described: TransactionDescription) -> dict[str, Any]:
    return {
        **_listing(described.listing),
        "last_execution_id": described.last_execution_id,
        "last_run_id": described.last_run_id,
        "last_totals": described.last_totals._asdict(),
        "members": [_member(member) for member in described.members],
        "more_members": described.more_members,
    }


def _member(member: OpenMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id.hex(),
        "producer_id": member.producer_id,
        "epoch": member.epoch,
        "txn_version": member.txn_version,
        "execution_id": member.execution_id,
        "run_id": member.run_id,
        "owner": member.owner,
        "age_ms": member.age_ms,
        "expires_in_ms": member.expires_in_ms,
        "partitions": [_partition(partition) for partition in member.partitions],
    }


def _partition(partition: OpenPartition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "topic_id": partition.tp.topic_id.hex(),
        "partition": partition.tp.partition,
        "first_offset": partition.first_offset,
        "last_stable_offset": partition.last_stable_offset,
    }


def _hanging(one: HangingTransaction) -> dict[str, Any]:
    return {
        **_partition(one.partition),
        "producer_id": _number(one.producer_id),
        "transactional_id": one.transactional_id or None,
        "idle_ms": one.idle_ms,
    }
