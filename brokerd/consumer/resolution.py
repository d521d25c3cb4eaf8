"""Looks up the ids of partitions, and the start of those without a position: the group's committed offset, or according to
auto.offset.reset; and, periodically, partitions that nobody reads. Runs on the loop thread, so that a poll may time out before a
look-up ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.broker_client import BrokerClient
from brokerd.client.groups import group_offsets
from brokerd.client.metadata import ids_in
from brokerd.client.offsets import OffsetSpec, Wanted, list_offsets
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import NO_OFFSET, AssignedPartition, Begin
from brokerd.errors import BrokerdError, NoOffsetForPartitionError, UnknownGroupError, WireError, fresh
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

LOOK_MS = 30_000  # gives other consumers of the group time to start
_NAMED_MAX = 10
_NONE = OffsetAndMetadata(NO_OFFSET)
_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


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


async def resolve(
    client: BrokerClient,
    searches: Sequence[Search],
    config: PlainConsumerConfig,
    uncommitted: Mapping[TopicIdPartition, int],
) -> list[Resolved]:
    """Looks up ids and positions of partitions; `uncommitted` offsets count as committed. Raises UnknownTopicOrPartitionError,
    NoOffsetForPartitionError, UnknownGroupError if the group's offset no longer exists, BrokerUnreachableError and the broker's
    errors, with the partition's name."""
    ids = await ids_of(client, {search.then.tp: search.then.id_tp for search in searches})
    known = {search.one: LogPosition(search.then.position) for search in searches if search.then.position is not None}
    committed = await _committed(client, [search for search in searches if _asks_committed(search, config)], ids, config)
    for search in searches:
        at = uncommitted.get(ids[search.then.tp])
        position = LogPosition(at) if at is not None else _position(committed.get(search.one))
        if search.then.begin is Begin.COMMITTED and position is not None and config.group_id:
            known.setdefault(search.one, position)
        elif search.then.begin is Begin.COMMITTED and (had := _had_offset(search, ids[search.then.tp])) != NO_OFFSET:
            raise UnknownGroupError(
                f"{search.then.tp}: group '{config.group_id}' had the offset {had} and has none now: it expired "
                "(offsets.retention.minutes) or was deleted; seek() to the offset at which to continue"
            )
        elif search.then.begin is Begin.COMMITTED and search.then.begun_at is not None:
            known.setdefault(search.one, search.then.begun_at)
        elif search.then.gone is not None and search.then.gone.tp == ids[search.then.tp]:
            resumes_at = search.then.gone.resumes_at(in_group=bool(config.group_id))
            if resumes_at is not None:
                known.setdefault(search.one, resumes_at)
    open_searches = [search for search in searches if search.one not in known]
    wanted: dict[TopicIdPartition, Wanted] = {ids[search.then.tp]: _spec(search, config) for search in open_searches}
    offsets = await list_offsets(client, wanted, config.isolation_level) if wanted else {}
    found = []
    for search in searches:
        id_tp = ids[search.then.tp]
        position = known.get(search.one)
        if position is None:
            result = offsets[id_tp]
            if isinstance(result, WireError):
                result.message = named(search.then.tp, result)
                raise result
            position = LogPosition(result.offset, result.leader_epoch_id)
        found.append(Resolved(search, id_tp, position, _offset(committed.get(search.one))))
    return found


async def ids_of(
    client: BrokerClient, wanted: Mapping[TopicPartition, TopicIdPartition | None]
) -> dict[TopicPartition, TopicIdPartition]:
    """Ids of partitions; looks up those that are None. Raises UnknownTopicOrPartitionError and the broker's errors."""
    unknown = [tp for tp, id_tp in wanted.items() if id_tp is None]
    found = ids_in(await client.metadata(sorted({tp.topic for tp in unknown})), unknown) if unknown else {}
    return {tp: id_tp if id_tp is not None else found[tp] for tp, id_tp in wanted.items()}


def _had_offset(search: Search, id_tp: TopicIdPartition) -> int:
    if search.then.gone is not None and search.then.gone.tp == id_tp:
        return search.then.gone.had_offset
    return search.then.had_offset


def named(tp: TopicPartition, error: WireError) -> str:
    """The error's message, prefixed with the partition's name unless the broker did that."""
    return error.message if error.message.startswith(f"{tp}: ") else f"{tp}: {error.message}"


def _begins_there(search: Search) -> bool:
    """True for a partition whose start depends on the group's committed offset."""
    return search.then.position is None and search.then.begin is Begin.COMMITTED


def _asks_committed(search: Search, config: PlainConsumerConfig) -> bool:
    if _begins_there(search):
        return True
    return search.then.committed is None and not config.enable_auto_commit  # transactions expect the offset from when reading began


async def _committed(
    client: BrokerClient, searches: Sequence[Search], ids: Mapping[TopicPartition, TopicIdPartition], config: PlainConsumerConfig
) -> dict[AssignedPartition, OffsetAndMetadata | WireError]:
    """The group's committed offsets, _NONE where there is none. Raises the broker's error if a partition begins there; otherwise
    returns it instead of the offset, for a transaction that needs it."""
    asked = {ids[search.then.tp]: search for search in searches}
    if not asked or not config.group_id:
        return {}
    found: Mapping[TopicIdPartition, OffsetAndMetadata | WireError]
    try:
        found = await group_offsets(client, config.group_id, list(asked))
    except WireError as error:
        if any(map(_begins_there, searches)):
            raise
        found = dict.fromkeys(asked, error)
    offsets: dict[AssignedPartition, OffsetAndMetadata | WireError] = {search.one: _NONE for search in searches}
    for id_tp, committed in found.items():
        search = asked[id_tp]
        if not isinstance(committed, WireError):
            offsets[search.one] = committed
            continue
        refusal = fresh(committed)
        refusal.message = named(search.then.tp, refusal)
        if _begins_there(search):
            raise refusal
        offsets[search.one] = refusal
    return offsets


def _position(committed: OffsetAndMetadata | WireError | None) -> LogPosition | None:
    if not isinstance(committed, OffsetAndMetadata) or committed is _NONE:
        return None
    return LogPosition(committed.offset, committed.leader_epoch_id)


def _offset(committed: OffsetAndMetadata | WireError | None) -> int | WireError | None:
    return committed.offset if isinstance(committed, OffsetAndMetadata) else committed


def _spec(search: Search, config: PlainConsumerConfig) -> OffsetSpec:
    """The start of a partition without a committed offset. Raises NoOffsetForPartitionError."""
    if search.then.begin is Begin.EARLIEST:
        return OffsetSpec.EARLIEST
    if search.then.begin is Begin.LATEST:
        return OffsetSpec.LATEST
    if config.auto_offset_reset == "none":
        group = f"group '{config.group_id}' has committed none" if config.group_id else "there is no group.id"
        raise NoOffsetForPartitionError(
            f"{search.then.tp} has no offset to begin at: {group}, and auto.offset.reset is none: seek() to one, or set it to "
            "earliest or latest"
        )
    return _SPECS[config.auto_offset_reset]


class Coverage:
    """The unread partitions that one consumer has seen and warned about, once each: groups have no members to distribute partitions
    among, so a partition added to a topic stays unread until a consumer assigns it."""

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
