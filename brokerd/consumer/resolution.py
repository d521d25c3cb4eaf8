"""Finds the ids of partitions, and where those begin that have no position: at the offset that the group has committed, or as
auto.offset.reset says. In the background, so that a poll may end before it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient
from brokerd.client.consumer.arrivals import Arrivals
from brokerd.client.consumer.offsets import OffsetSpec, Wanted
from brokerd.client.group_offsets import OffsetAndMetadata
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import NO_OFFSET, AssignedPartition, Begin, Gone
from brokerd.errors import ClientError, NoOffsetForPartitionError, UnknownGroupError, WireError, fresh
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

_NONE = OffsetAndMetadata(NO_OFFSET)
_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


class Search(NamedTuple):
    """A partition as it was when the search began."""

    one: AssignedPartition
    version: int
    id_tp: TopicIdPartition | None
    position: int | None
    begin: Begin
    begun_at: LogPosition | None
    gone: Gone | None
    had_offset: int  # of the group, when the position was lost
    reason: str  # why its position was lost


class Found(NamedTuple):
    """The result of a search."""

    search: Search
    id_tp: TopicIdPartition
    position: LogPosition
    committed: int | WireError | None  # by the group, NO_OFFSET for none, or its refusal; None = not asked


class Resolution:
    """One search. `take` waits for its end."""

    def __init__(
        self,
        client: BlockingClient,
        partitions: Sequence[AssignedPartition],
        config: PlainConsumerConfig,
        uncommitted: Mapping[TopicIdPartition, int],
        on_arrival: Callable[[], None],
    ) -> None:
        searches = [
            Search(one, one.version, one.id_tp, one.position, one.begin, one.begun_at, one.gone, one.had_offset, one.reason)
            for one in partitions
        ]
        self._outcome: Arrivals[list[Found] | BaseException | None] = Arrivals(on_arrival)
        self._future = client.loop_thread.submit(self._run(client.broker_client, searches, config, uncommitted))

    async def _run(
        self,
        client: BrokerClient,
        searches: Sequence[Search],
        config: PlainConsumerConfig,
        uncommitted: Mapping[TopicIdPartition, int],
    ) -> None:
        try:
            self._outcome.put(await resolve(client, searches, config, uncommitted))
        except BaseException as error:
            is_final = isinstance(error, Exception)
            self._outcome.put(error if is_final else ClientError("the client of this consumer was closed"))
            if not is_final:
                raise

    def take(self, timeout_ms: int | None) -> list[Found] | None:
        """The outcome; None after `timeout_ms`, or once if `wake` was called. Raises the error that ended the search."""
        try:
            outcome = self._outcome.get(timeout_ms)
        except queue.Empty:
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @property
    def has_arrivals(self) -> bool:
        """True if `take` would return at once."""
        return not self._outcome.empty()

    def wake(self) -> None:
        """Has a thread that waits in `take` return. For any thread."""
        self._outcome.put(None)

    def close(self) -> None:
        """Gives up the search."""
        self._future.cancel()


async def resolve(
    client: BrokerClient,
    searches: Sequence[Search],
    config: PlainConsumerConfig,
    uncommitted: Mapping[TopicIdPartition, int],
) -> list[Found]:
    """Ids and positions of partitions; `uncommitted` offsets count as committed. Raises UnknownTopicOrPartitionError,
    NoOffsetForPartitionError, UnknownGroupError for a group that has lost its offset, BrokerUnreachableError and the broker's
    errors, with the partition's name."""
    ids = await ids_of(client, {search.one.tp: search.id_tp for search in searches})
    known = {search.one: LogPosition(search.position) for search in searches if search.position is not None}
    committed = await _committed(client, [search for search in searches if _asks_committed(search, config)], ids, config)
    for search in searches:
        at = uncommitted.get(ids[search.one.tp])
        position = LogPosition(at) if at is not None else _position(committed.get(search.one))
        if search.begin is Begin.COMMITTED and position is not None and config.group_id:
            known.setdefault(search.one, position)
        elif search.begin is Begin.COMMITTED and (had := _had_offset(search, ids[search.one.tp])) != NO_OFFSET:
            raise UnknownGroupError(
                f"{search.one.tp}: group '{config.group_id}' had the offset {had}, and has none any more: it has expired "
                "(offsets.retention.minutes), or was deleted. seek() to where reading is to go on"
            )
        elif search.begin is Begin.COMMITTED and search.begun_at is not None:
            known.setdefault(search.one, search.begun_at)
        elif search.gone is not None and search.gone.tp == ids[search.one.tp]:
            resumes_at = search.gone.resumes_at(in_group=bool(config.group_id))
            if resumes_at is not None:
                known.setdefault(search.one, resumes_at)
    open_searches = [search for search in searches if search.one not in known]
    wanted: dict[TopicIdPartition, Wanted] = {ids[search.one.tp]: _spec(search, config) for search in open_searches}
    offsets = await client.list_offsets(wanted, config.isolation_level) if wanted else {}
    found = []
    for search in searches:
        id_tp = ids[search.one.tp]
        position = known.get(search.one)
        if position is None:
            result = offsets[id_tp]
            if isinstance(result, WireError):
                result.message = named(search.one.tp, result)
                raise result
            position = LogPosition(result.offset, result.leader_epoch_id)
        found.append(Found(search, id_tp, position, _offset(committed.get(search.one))))
    return found


async def ids_of(
    client: BrokerClient, wanted: Mapping[TopicPartition, TopicIdPartition | None]
) -> dict[TopicPartition, TopicIdPartition]:
    """Ids of partitions; asks for those that are None. Raises UnknownTopicOrPartitionError and the broker's errors."""
    topics = sorted({tp.topic for tp, id_tp in wanted.items() if id_tp is None})
    metadata = await client.metadata(topics) if topics else None
    ids = {}
    for tp, id_tp in wanted.items():
        if id_tp is None:
            assert metadata is not None
            if tp.topic in metadata.errors:
                raise metadata.errors[tp.topic]
            id_tp = metadata.topics[tp.topic].id_of(tp.partition)
        ids[tp] = id_tp
    return ids


def _had_offset(search: Search, id_tp: TopicIdPartition) -> int:
    if search.gone is not None and search.gone.tp == id_tp:
        return search.gone.had_offset
    return search.had_offset


def named(tp: TopicPartition, error: WireError) -> str:
    """The text of a partition's error, which the broker may have begun with its name."""
    return error.message if error.message.startswith(f"{tp}: ") else f"{tp}: {error.message}"


def _begins_there(search: Search) -> bool:
    """True for a partition that cannot be read without the offset that the group has committed."""
    return search.position is None and search.begin is Begin.COMMITTED


def _asks_committed(search: Search, config: PlainConsumerConfig) -> bool:
    if _begins_there(search):
        return True
    return search.one.committed is None and not config.enable_auto_commit  # for transactions: what holds as reading begins


async def _committed(
    client: BrokerClient, searches: Sequence[Search], ids: Mapping[TopicPartition, TopicIdPartition], config: PlainConsumerConfig
) -> dict[AssignedPartition, OffsetAndMetadata | WireError]:
    """The offsets that the group has committed, _NONE where it has none. Raises the broker's refusal where a partition begins
    there; elsewhere it stands for the offset, for a transaction that needs it."""
    asked = {ids[search.one.tp]: search for search in searches}
    if not asked or not config.group_id:
        return {}
    found: Mapping[TopicIdPartition, OffsetAndMetadata | WireError]
    try:
        found = await client.groups.offsets(config.group_id, list(asked))
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
        refusal.message = named(search.one.tp, refusal)
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
    """Where a partition without a committed offset begins. Raises NoOffsetForPartitionError."""
    if search.begin is Begin.EARLIEST:
        return OffsetSpec.EARLIEST
    if search.begin is Begin.LATEST:
        return OffsetSpec.LATEST
    if config.auto_offset_reset == "none":
        group = f"group '{config.group_id}' has committed none" if config.group_id else "there is no group.id"
        raise NoOffsetForPartitionError(
            f"{search.one.tp} has no offset to begin at: {group}, and auto.offset.reset is none: seek() to one, or set it to "
            "earliest or latest"
        )
    return _SPECS[config.auto_offset_reset]
