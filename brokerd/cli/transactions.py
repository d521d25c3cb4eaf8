"""`brokerd transactions`: list, describe, abort, forget, find-hanging."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brokerd.cli.output import NONE, dashed, duration_text, fields, known, note, show, size_text, table, topic_text
from brokerd.cli.parser import check_range, connect
from brokerd.client.blocking import BlockingClient
from brokerd.client.transactions import NO_VERSION, state_name
from brokerd.config.settings import INT32_MAX
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import InvalidRequestError, counted
from brokerd.wire.v1.transaction_pb2 import (
    DescribeTransactionResponse,
    ForgetTransactionalIdResponse,
    HangingTransaction,
    OpenMember,
    OpenPartition,
    TransactionListing,
)

_NAMED_MAX = 2  # partitions
_Held = Mapping[str, Sequence[OpenPartition]]  # partitions that are held back, by transactional id


def list_transactions(args: argparse.Namespace) -> None:
    """Prints one line per transactional id, with the partitions that it holds back."""
    with connect(args) as client:
        listings = client.list_transactions(args.state, args.prefix)
        found = client.find_hanging_transactions(0)
    held: dict[str, list[OpenPartition]] = {}
    for one in found.transactions:
        held.setdefault(one.transactional_id, []).append(one.partition)
    if found.more:
        note(f"of the partitions that are held back, {len(found.transactions):,} are named")
    document = [_listing(one) | {"holds_back": [_partition(tp) for tp in held.get(one.transactional_id, ())]} for one in listings]
    show(args, document, _listing_lines(listings, held))


def _listing_lines(listings: Sequence[TransactionListing], held: _Held) -> Iterator[str]:
    if not listings:
        yield "no transactional ids that you may see have this prefix and state"
        return
    rows = [
        (
            one.transactional_id,
            state_name(one.state),
            str(dashed(one.last_version)),
            str(dashed(one.txn_version)),
            one.open_members,
            duration_text(one.age_ms),
            _named(held.get(one.transactional_id, ())),
            one.owner or NONE,
        )
        for one in listings
    ]
    yield table(("TRANSACTIONAL ID", "STATE", "COMMITTED", "OPEN", "MEMBERS", "AGE", "HOLDS BACK", "OWNER"), rows)


def describe_transaction(args: argparse.Namespace) -> None:
    """Prints the last commit, the open members, and the partitions each has written to."""
    with connect(args) as client:
        _check_known(client, args.transactional_id)
        described = client.describe_transaction(args.transactional_id)
    document = {
        **_listing(described.listing),
        **fields(described, "last_execution_id last_run_id more_members"),
        "last_totals": fields(described.last_totals, "rows key_bytes value_bytes key_hash_sum"),
        "members": [_member(member) for member in described.members],
    }
    show(args, document, _description_lines(described))


def _description_lines(described: DescribeTransactionResponse) -> Iterator[str]:
    listing = described.listing
    count = counted(len(described.members) + described.more_members, "open member")
    yield f"transactional id {listing.transactional_id}: {state_name(listing.state)}, {count}"
    yield f"  {_committed_text(described)}"
    if state_name(listing.state) == "prepared":
        yield f"  version {listing.txn_version} is decided, and not visible everywhere yet: the broker continues until it is"
    if described.members:
        members = [
            (
                one.txn_version,
                one.execution_id,
                one.producer_id,
                duration_text(one.age_ms),
                duration_text(one.expires_in_ms),
                one.owner or NONE,
            )
            for one in described.members
        ]
        yield table(("VERSION", "EXECUTION", "PRODUCER", "AGE", "EXPIRES IN", "OWNER"), members, indent="  ")
        rows = [
            (one.producer_id, _topic(place), place.partition, place.first_offset, place.last_stable_offset)
            for one in described.members
            for place in one.partitions
        ]
        yield table(("PRODUCER", "TOPIC", "PARTITION", "FROM", "STABLE"), rows, indent="  ") if rows else "  no data yet"
    if described.more_members:
        yield f"  and {counted(described.more_members, 'more member')}"


def _committed_text(described: DescribeTransactionResponse) -> str:
    if described.listing.last_version == NO_VERSION:
        return "nothing committed yet"
    totals = described.last_totals
    run = f", run {described.last_run_id}" if described.last_run_id else ""
    return (
        f"last committed: version {described.listing.last_version} in execution {described.last_execution_id}{run}: "
        f"{counted(totals.rows, 'row')}, keys {size_text(totals.key_bytes)}, values {size_text(totals.value_bytes)}"
    )


def abort_transaction(args: argparse.Namespace) -> None:
    """Aborts open members and prints their number."""
    with connect(args) as client:
        _check_known(client, args.transactional_id)
        ended = client.abort_transaction(args.transactional_id, args.execution)
        left = client.find_transaction(args.transactional_id)  # None: it had never committed
    last_version = NO_VERSION if left is None else left.last_version
    document = {"transactional_id": args.transactional_id, "aborted_members": ended, "last_version": known(last_version)}
    show(args, document, [_abort_text(args.transactional_id, args.execution, ended, last_version)])


def _abort_text(transactional_id: str, execution_id: str, ended: int, last_version: int) -> str:
    stays = "no version of it is committed" if last_version == NO_VERSION else f"version {last_version} stays committed"
    if not ended:
        where = f" in execution '{execution_id}'" if execution_id else ""
        return f"transactional id '{transactional_id}' has no open member{where}: nothing to do; {stays}"
    if ended == 1:
        meaning = "what it wrote is void, and its task fails at its next batch"
    else:
        meaning = "what they wrote is void, and their tasks fail at their next batch"
    return f"aborted {counted(ended, 'open member')} of transactional id '{transactional_id}': {meaning}; {stays}"


def forget_transactional_id(args: argparse.Namespace) -> None:
    """Makes the broker forget an id; prints its last version."""
    with connect(args) as client:
        _check_known(client, args.transactional_id)
        forgotten = client.forget_transactional_id(args.transactional_id)
    document = {"transactional_id": args.transactional_id, **fields(forgotten, "principal last_version")}
    show(args, document, [_forgotten_text(args.transactional_id, forgotten)])


def _forgotten_text(transactional_id: str, forgotten: ForgetTransactionalIdResponse) -> str:
    last_version, principal = forgotten.last_version, forgotten.principal
    if last_version == NO_VERSION:
        meaning = "it had committed nothing"
    else:
        meaning = f"it had committed version {last_version}, and repeating that version or an older one writes it again"
    return f"forgot transactional id '{transactional_id}' of principal '{principal}': {meaning}"


def find_hanging(args: argparse.Namespace) -> None:
    """Prints one line per partition that is held back, and a note on standard error if there are more."""
    check_range(args, "--idle-ms", args.idle_ms, maximum=INT32_MAX)
    with connect(args) as client:
        found = client.find_hanging_transactions(args.idle_ms)
    document = [
        _partition(one.partition) | fields(one, "producer_id idle_ms") | {"transactional_id": one.transactional_id or None}
        for one in found.transactions
    ]
    show(args, document, _hanging_lines(found.transactions, args.idle_ms))
    if found.more:
        count = len(found.transactions)
        note(f"these are the {count:,} that have been silent longest; more partitions are held back")


def _hanging_lines(hanging: Sequence[HangingTransaction], idle_ms: int) -> Iterator[str]:
    if not hanging:
        yield f"no partition is held back by a transaction that wrote nothing there for {duration_text(idle_ms)}"
        return
    rows = [
        (
            _topic(one.partition),
            one.partition.partition,
            one.partition.last_stable_offset,
            duration_text(one.idle_ms),
            dashed(one.producer_id),
            one.transactional_id or "(unknown: it has ended; if this stays, see the broker's log)",
        )
        for one in hanging
    ]
    yield table(("TOPIC", "PARTITION", "STABLE", "IDLE", "PRODUCER", "TRANSACTIONAL ID"), rows)


def _check_known(client: BlockingClient, transactional_id: str) -> None:
    """Raises InvalidRequestError, suggesting the nearest transactional id, if this one does not exist."""
    if client.find_transaction(transactional_id) is not None:
        return
    existing = [listing.transactional_id for listing in client.list_transactions()]
    hint = did_you_mean(transactional_id, existing, otherwise="'brokerd transactions list' prints those that you may see")
    raise InvalidRequestError(f"there is no transactional id '{transactional_id}': {hint}")


def _named(partitions: Sequence[OpenPartition]) -> str:
    names = [f"{_topic(one)}-{one.partition}" for one in partitions[:_NAMED_MAX]]
    if len(partitions) > _NAMED_MAX:
        names.append(f"and {len(partitions) - _NAMED_MAX} more")
    return " ".join(names) or NONE


def _topic(partition: OpenPartition) -> str:
    return topic_text(partition.topic, partition.topic_id)


def _listing(listing: TransactionListing) -> dict[str, Any]:
    state = {"state": state_name(listing.state)}
    return fields(listing, "transactional_id") | state | fields(listing, "last_version txn_version open_members age_ms owner")


def _member(member: OpenMember) -> dict[str, Any]:
    found = fields(member, "member_id producer_id producer_epoch txn_version execution_id run_id owner age_ms expires_in_ms")
    return found | {"partitions": [_partition(partition) for partition in member.partitions]}


def _partition(partition: OpenPartition) -> dict[str, Any]:
    return fields(partition, "topic topic_id partition first_offset last_stable_offset")
