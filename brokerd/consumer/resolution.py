"""Looks up the ids of partitions, and the start of those without a position: the group's committed offset, or by auto.offset.reset.
Warns periodically about unread partitions. Runs on the loop thread, so a poll may time out before a lookup ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from brokerd.client.broker_client import BrokerClient, is_repeatable
from brokerd.client.groups import group_offsets
from brokerd.client.metadata import Metadata, id_of
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec, Wanted, list_offsets
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import NO_OFFSET, AssignedPartition, Begin
from brokerd.errors import BrokerdError, NoOffsetForPartitionError, UnknownGroupError, WireError, fresh
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_SOON_MS = 1_000
LOOK_MS = 30_000  # gives other consumers of the group time to start
_NAMED_MAX = 10

Committed = LogPosition | WireError  # the group's offset, NO_OFFSET for none, or the broker's error


class Search(NamedTuple):
    """A partition, and a copy of its state when the search began."""

    one: AssignedPartition
    then: AssignedPartition


class Resolved(NamedTuple):
    """The result of a search."""

    search: Search
    id_tp: TopicIdPartition
    position: LogPosition
    committed: int | WireError | None  # by the group, NO_OFFSET for none, or the broker's error; None = not requested


class Found(NamedTuple):
    """The outcome of a search: partitions found, and the first error among the others, which does not affect these. Partitions with
    neither are searched for again."""

    resolved: list[Resolved]
    failure: BrokerdError | None


async def resolve(
    client: BrokerClient,
    searches: Sequence[Search],
    config: PlainConsumerConfig,
    uncommitted: Mapping[TopicIdPartition, int],
) -> Found:
    """Looks up ids and positions of partitions; `uncommitted` offsets count as committed. A failure names its partition:
    UnknownTopicOrPartitionError, NoOffsetForPartitionError, UnknownGroupError if the group's offset no longer exists, and the
    broker's errors. Raises errors of whole requests, such as BrokerUnreachableError."""
    unknown = sorted({search.then.tp.topic for search in searches if search.then.id_tp is None})
    metadata = await client.metadata(unknown) if unknown else Metadata({}, {})
    failures: list[BrokerdError] = []
    ids: dict[AssignedPartition, TopicIdPartition] = {}
    for search in searches:
        with _noted(failures):
            ids[search.one] = search.then.id_tp or id_of(metadata.topic(search.then.tp.topic), search.then.tp.partition)
    known = [search for search in searches if search.one in ids]
    committed = await _committed(client, known, ids, config)
    starts: dict[AssignedPartition, LogPosition | OffsetSpec] = {}
    for search in known:
        with _noted(failures):
            id_tp = ids[search.one]
            starts[search.one] = _start(search.then, id_tp, committed.get(search.one), uncommitted.get(id_tp), config)
    wanted: dict[TopicIdPartition, Wanted] = {ids[one]: start for one, start in starts.items() if isinstance(start, OffsetSpec)}
    offsets = await _listed(client, wanted, config.isolation_level) if wanted else {}
    resolved = []
    for search in known:
        start = starts.get(search.one)
        if isinstance(start, OffsetSpec):
            result = offsets.get(ids[search.one])
            if isinstance(result, WireError):
                result.message = named(search.then.tp, result)
                failures.append(result)
            start = LogPosition(result.offset, result.leader_epoch_id) if isinstance(result, OffsetAndTimestamp) else None
        if start is not None:
            of_group = committed.get(search.one)
            offset = of_group.offset if isinstance(of_group, LogPosition) else of_group
            resolved.append(Resolved(search, ids[search.one], start, offset))
    return Found(resolved, failures[0] if failures else None)


async def _listed(
    client: BrokerClient, wanted: Mapping[TopicIdPartition, Wanted], isolation: str
) -> Mapping[TopicIdPartition, OffsetAndTimestamp | WireError]:
    """Offsets to begin at. In a cluster, partitions whose leader does not answer within a second are left out if others have an
    answer: those are read while the next search waits for the rest."""
    if client.has_several_nodes:
        timeout_ms = min(client.config.api_timeout_ms, _SOON_MS)
        found = await list_offsets(client, wanted, isolation, timeout_ms=timeout_ms, is_partial=True)
        answered = {tp: one for tp, one in found.items() if isinstance(one, OffsetAndTimestamp) or not is_repeatable(one)}
        if answered:
            return answered
    return await list_offsets(client, wanted, isolation)


@contextlib.contextmanager
def _noted(failures: list[BrokerdError]) -> Iterator[None]:
    try:
        yield
    except BrokerdError as error:
        failures.append(error)


def _start(
    then: AssignedPartition,
    id_tp: TopicIdPartition,
    committed: Committed | None,
    uncommitted: int | None,
    config: PlainConsumerConfig,
) -> LogPosition | OffsetSpec:
    """Where to begin. Raises NoOffsetForPartitionError, UnknownGroupError, and the error of the group's offset."""
    if then.position is not None:
        return LogPosition(then.position)
    if then.begin is Begin.COMMITTED and config.group_id:
        if isinstance(committed, WireError):
            raise committed
        if uncommitted is not None:
            return LogPosition(uncommitted)
        if committed is not None and committed.offset != NO_OFFSET:
            return committed
    gone = then.gone if then.gone is not None and then.gone.tp == id_tp else None
    if then.begin is Begin.COMMITTED:
        had = then.had_offset if gone is None else gone.had_offset
        if had != NO_OFFSET:
            raise UnknownGroupError(
                f"{then.tp}: group '{config.group_id}' had the offset {had} and has none now: it expired "
                "(offsets.retention.minutes) or was deleted; seek() to the offset at which to continue"
            )
        if then.begun_at is not None:
            return then.begun_at
    resumes_at = None if gone is None else gone.resumes_at(in_group=bool(config.group_id))
    return resumes_at if resumes_at is not None else _spec(then, config)


def named(tp: TopicPartition, error: WireError) -> str:
    """The error's message, prefixed with the partition's name unless the broker did that."""
    return error.message if error.message.startswith(f"{tp}: ") else f"{tp}: {error.message}"


def _begins_there(search: Search) -> bool:
    """True for a partition whose start depends on the group's committed offset."""
    return search.then.position is None and search.then.begin is Begin.COMMITTED


async def _committed(
    client: BrokerClient, searches: Sequence[Search], ids: Mapping[AssignedPartition, TopicIdPartition], config: PlainConsumerConfig
) -> dict[AssignedPartition, Committed]:
    """The group's committed offsets that are needed: as the start, or for transactions, which expect the offset from when reading
    began. Raises the error of the whole group if a partition begins at its committed offset."""
    for_transactions = not config.enable_auto_commit
    asked = {
        ids[search.one]: search
        for search in searches
        if _begins_there(search) or (for_transactions and search.then.committed is None)
    }
    if not asked or not config.group_id:
        return {}
    try:
        found = await group_offsets(client, config.group_id, list(asked))
    except WireError as error:
        if any(map(_begins_there, asked.values())):
            raise
        found = dict.fromkeys(asked, error)
    offsets: dict[AssignedPartition, Committed] = {search.one: LogPosition(NO_OFFSET) for search in asked.values()}
    for id_tp, committed in found.items():
        search = asked[id_tp]
        if isinstance(committed, WireError):
            offsets[search.one] = refused = fresh(committed)
            refused.message = named(search.then.tp, refused)
        else:
            offsets[search.one] = LogPosition(committed.offset, committed.leader_epoch_id)
    return offsets


def _spec(then: AssignedPartition, config: PlainConsumerConfig) -> OffsetSpec:
    """The start of a partition without a committed offset. Raises NoOffsetForPartitionError."""
    if then.begin in (Begin.EARLIEST, Begin.LATEST):
        return OffsetSpec(then.begin.value)
    if config.auto_offset_reset == "none":
        group = f"group '{config.group_id}' has committed none" if config.group_id else "there is no group.id"
        raise NoOffsetForPartitionError(
            f"{then.tp} has no offset to begin at: {group}, and auto.offset.reset is none: seek() to one, or set it to "
            "earliest or latest"
        )
    return OffsetSpec(config.auto_offset_reset)


class Coverage:
    """Warns a consumer once about each unread partition: groups have no members to distribute partitions among, so a partition
    added to a topic stays unread until a consumer assigns it."""

    def __init__(self, client: BrokerClient, group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._counts: dict[bytes, int] = {}  # a topic's partition count at the first check
        self._told: set[TopicIdPartition] = set()

    async def look(self, topics: Mapping[bytes, str], assigned: Collection[TopicIdPartition]) -> None:
        """Warns about unassigned partitions of `topics` (by id): without a group, those added since the first check; in a group,
        those without a committed offset."""
        with contextlib.suppress(BrokerdError):  # the next check retries
            found = await self._client.metadata(sorted(topics.values()))
            for topic in found.topics.values():
                count = topic.partition_count
                first = 0 if self._group_id else self._counts.setdefault(topic.topic_id, count)
                others = {TopicIdPartition(topic.topic_id, number) for number in range(first, count)} - self._told
                unread = sorted(others.difference(assigned)) if topic.topic_id in topics else []
                if self._group_id and unread:
                    read = await group_offsets(self._client, self._group_id, unread)
                    unread = [tp for tp in unread if tp not in read]
                if unread:
                    self._told.update(unread)
                    self._warn(topic.name, [str(tp.partition) for tp in unread])

    def _warn(self, topic: str, numbers: list[str]) -> None:
        logger.warning(
            "topic '%s' has partitions that %s (%s): assign() them, here or in another process, or their records stay unread",
            topic,
            f"no consumer in group '{self._group_id}' has read"
            if self._group_id
            else "were added, and this consumer does not read",
            ", ".join(numbers[:_NAMED_MAX]) + (", ..." if len(numbers) > _NAMED_MAX else ""),
        )
