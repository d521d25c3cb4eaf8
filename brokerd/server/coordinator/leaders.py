"""The coordinator's calls to the leaders of partitions: plain calls on this node (members.py), Peers for other nodes. Also the
outcome of members whose markers are lost to damage:

- Void, if nothing is lost after the member's records, if the batch that was taken out is whole, or if another partition has its
  records without a marker and lost nothing after them: a commit is complete only with all its markers.
- The marker is written again, if the coordinator's log has the outcome: always for the last commit of each id (up to 100,000
  members and partitions in all), for others until compaction.
- A marker in another partition decides: the doctor uses it when it accepts the damage, and the next start writes the marker.
- Otherwise readers of committed records wait before the records until `brokerd doctor --decide`; `decided-members` keeps the
  decision.
- Void, if the records are below the log start: no reader reaches them.
- Only the damaged range is lost, if a snapshot after it knows that the member ended.
- A marker from a torn tail, or from after the rebuilt end of a log, is written again for a last commit; otherwise the member is
  void (docs/guarantees.md, "What is undecidable").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from brokerd.coordinator.markers import Ending, Outcome, endings
from brokerd.coordinator.transactional_id import NO_VERSION, Held, HeldData
from brokerd.datadir.node_state import DecidedMembers
from brokerd.errors import (
    Fate,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.markers import UnmarkedData, undecided_text, with_lost_markers
from brokerd.server.coordinator.members import IDS_MAX, PARTITIONS_MAX, Members, Peers
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, CoordinatorRecord, HeldBack

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
T = TypeVar("T")
_InPartition: TypeAlias = TopicIdPartition | HeldBack | pb.OpenMemberData | pb.HangingPartition
_UNDECIDED_LOGGED_MAX = 100
_PATIENCE_S = 2.0  # with a node whose response nothing depends on
_NONE = -1


class Frozen(NamedTuple):
    """The data that all leaders hold of frozen members, which can append nothing more."""

    held: Held
    held_back: list[HeldBack]


class OpenMembers(NamedTuple):
    """Members with open data. `others`: at least one other node has answered."""

    producer_ids: AbstractSet[int]
    others: bool


class Leaders:
    """See the module docstring. Use it in the event loop only."""

    def __init__(self, peers: Peers, members: Members, epoch: Callable[[], int]) -> None:
        """`epoch`: the coordinator's."""
        self._peers = peers
        self._members = members
        self._epoch = epoch
        self._elsewhere: frozenset[int] = frozenset()  # members with open data on other nodes, as last answered

    @property
    def producer_ids(self) -> AbstractSet[int]:
        """Members with open data: on this node now, and on other nodes as last answered."""
        return self._members.producer_ids | self._elsewhere if self._elsewhere else self._members.producer_ids

    async def freeze(self, producer_ids: Collection[int], partitions: Iterable[TopicIdPartition]) -> Frozen:
        """Freezes members at all leaders. The leaders of `partitions` must answer, so that no reported data is missing; data that
        the members have elsewhere was reported to no one, and is void. Other leaders that do not answer are listed as silent: one
        of them may lead a partition that this node takes for another's. Raises InvalidRequestError if a topic has no such
        partition; NotReadyError and others, perhaps with some members frozen, if a required leader does not answer."""
        named = list(partitions)
        required: dict[int, list[TopicIdPartition]] = {}
        for tp in filter(self._is_known, named):
            if self._peers.leader_of(tp) == NO_LEADER:
                raise _no_leader(tp)
            required.setdefault(self._peers.leader_of(tp), []).append(tp)
        nodes = {**dict.fromkeys(self._peers.leaders(), ()), **required}
        ids = list(producer_ids)
        found = await _each(
            self._freeze(node_id, ids, tps)
            if node_id in required
            else self._shortly(node_id, partial(self._freeze, node_id, ids, tps))
            for node_id, tps in nodes.items()
        )
        sums: dict[int, HeldData] = {}
        held_back: list[HeldBack] = []
        counted_at: dict[TopicIdPartition, int] = {}
        silent: list[int] = []
        for node_id, answered in zip(nodes, found, strict=True):
            if isinstance(answered, WireError):
                if node_id in required and isinstance(answered, NotLeaderError | UnknownTopicIdError):
                    # One of the two nodes has yet to learn of a change; the client only has to retry.
                    raise NotReadyError(f"node {node_id}: {answered.message}: retry", fate=Fate.NOT_APPENDED) from answered
                if node_id in required:
                    raise answered
                silent.append(node_id)
                continue
            for response in answered:
                held_back += response.held_back
                for place in response.held_back:
                    tp = TopicIdPartition(place.topic_id, place.partition)
                    leader = self._peers.leader_of(tp) if self._is_known(tp) else node_id
                    # A former leader, or this node, has yet to learn of the new one. The markers would miss the data.
                    if counted_at.setdefault(tp, leader) != node_id:
                        text = f"partition {tp} is led by node {counted_at[tp]}, or by node {node_id}: retry"
                        raise NotReadyError(text, fate=Fate.NOT_APPENDED)
                for one in response.members:
                    known = sums.get(one.producer_id, HeldData(0, True))
                    sums[one.producer_id] = HeldData(known.records + one.records, known.is_durable and one.is_durable)
        # Includes partitions deleted meanwhile: some responses lack their records.
        return Frozen(Held(sums, [tp for tp in named if not self._is_known(tp)], silent), held_back)

    async def _freeze(
        self, node_id: int, producer_ids: list[int], tps: Sequence[TopicIdPartition]
    ) -> list[pb.FreezeMembersResponse]:
        found, roles = [], set[int]()
        *others, named = _pieces(tps, PARTITIONS_MAX)
        for some in others:
            request = pb.FreezeMembersRequest(coordinator_epoch=self._epoch(), partitions=map(_place, some))
            roles.add((await self._ask(node_id, request, pb.FreezeMembersResponse)).roles)
        for ids in _pieces(producer_ids, IDS_MAX):
            request = pb.FreezeMembersRequest(coordinator_epoch=self._epoch(), producer_ids=ids, partitions=map(_place, named))
            found.append(response := await self._ask(node_id, request, pb.FreezeMembersResponse))
            while response.more:
                request.after.CopyFrom(_place(response.held_back[-1]))
                found.append(response := await self._ask(node_id, request, pb.FreezeMembersResponse))
                del response.members[:]  # already counted with the first page
        if len(roles.union(response.roles for response in found)) > 1:
            # A partition that left this leader meanwhile would be counted, but get no marker.
            raise NotReadyError(f"partitions that node {node_id} leads have changed meanwhile: retry", fate=Fate.NOT_APPENDED)
        return found

    async def write_markers(self, transactional_id: str, commit: CommitPrepared) -> None:
        """Writes the markers of a commit into the partitions that it holds back, and no others. Returns once all are durable.
        Raises the first error of a leader, once all have answered."""
        ids = [(pid, True) for pid in commit.committed_producer_ids] + [(pid, False) for pid in commit.aborted_producer_ids]
        await self._mark(transactional_id, commit.txn_version, ids, commit.held_back)

    async def rewrite_lost(self, ending: Ending, data: Collection[pb.OpenMemberData], *, others: bool) -> None:
        """Rewrites the markers of a complete commit where it counted data. The members' other data is voided: its leader could not
        be asked at the commit. `others`: other nodes have answered. Raises as `write_markers` does."""
        ids = {one.producer_id for one in data}
        for name, version, is_committed in ((ending.transactional_id, ending.version, True), ("", NO_VERSION, False)):
            tps = dict.fromkeys(
                TopicIdPartition(one.topic_id, one.partition)
                for one in data
                if _is_counted(ending, one, others=others) == is_committed
            )
            places = [HeldBack(topic_id=tp.topic_id, partition=tp.partition, first_offset=_NONE) for tp in tps]
            if places:
                await self._mark(name, version, [(producer_id, is_committed) for producer_id in ids], places)

    async def _mark(
        self, transactional_id: str, version: int, ids: Sequence[tuple[int, bool]], held_back: Iterable[HeldBack]
    ) -> None:
        await self._at_leaders(held_back, lambda node_id, here: self._mark_at(node_id, transactional_id, version, ids, here))

    async def _mark_at(
        self, node_id: int, transactional_id: str, version: int, ids: Sequence[tuple[int, bool]], places: Sequence[HeldBack]
    ) -> None:
        for some in _pieces(ids, IDS_MAX):
            for here in _pieces(places, PARTITIONS_MAX):
                request = pb.WriteMarkersRequest(
                    coordinator_epoch=self._epoch(),
                    transactional_id=transactional_id,
                    txn_version=version,
                    committed_producer_ids=[producer_id for producer_id, is_winner in some if is_winner],
                    aborted_producer_ids=[producer_id for producer_id, is_winner in some if not is_winner],
                    partitions=here,
                )
                await self._ask(node_id, request, pb.WriteMarkersResponse)

    async def abort(self, transactional_id: str, producer_ids: Sequence[int]) -> None:
        """Writes abort markers wherever these members, whose end is durable, have data. Returns once all are durable. Raises the
        first error of a leader, once all have answered; the sweep finds the data that is left."""
        ids = [(producer_id, False) for producer_id in producer_ids]
        nodes = self._peers.leaders()
        marks = [(node_id, partial(self._mark_at, node_id, transactional_id, NO_VERSION, ids, ())) for node_id in nodes]
        _raise_first(await _each(self._shortly(node_id, mark) for node_id, mark in marks))

    async def _shortly(self, node_id: int, ask: Callable[[], Awaitable[T]]) -> T:
        """The response of a node that nothing depends on, within _PATIENCE_S: if it hangs, the others must not wait until its lease
        ends. `ask` is a function: a coroutine would be left unawaited if this call is cancelled first. Raises NotReadyError."""
        try:
            async with asyncio.timeout(None if node_id == self._peers.node_id else _PATIENCE_S):
                return await ask()
        except TimeoutError:
            raise NotReadyError(f"node {node_id} does not answer: retry") from None

    async def release(self, transactional_id: str, commit: CommitPrepared) -> None:
        """Makes the markers of a commit take effect: in one step at each leader, one leader after the other. Call it once all are
        durable. Raises the first error of a leader, once all have answered."""
        request = pb.ReleaseRequest(
            coordinator_epoch=self._epoch(), transactional_id=transactional_id, txn_version=commit.txn_version
        )
        # Always includes this node: without a partition left here, its holds would stay otherwise.
        own = [self._peers.node_id]
        await self._at_leaders(commit.held_back, lambda node_id, _: self._ask(node_id, request, pb.ReleaseResponse), nodes=own)

    async def open_members(self) -> OpenMembers:
        """Members with open data, at all leaders that answer."""
        nodes = [node_id for node_id in self._peers.leaders() if node_id != self._peers.node_id]
        found = await self._answers(nodes, self._open_members)
        self._elsewhere = frozenset().union(*found)
        return OpenMembers(self.producer_ids, others=bool(found))

    async def _open_members(self, node_id: int) -> set[int]:
        found: set[int] = set()
        request = pb.OpenMembersRequest(coordinator_epoch=self._epoch(), after_producer_id=_NONE)
        while True:
            response = await self._ask(node_id, request, pb.OpenMembersResponse)
            found.update(response.producer_ids)
            if not response.more:
                return found
            request.after_producer_id = response.producer_ids[-1]

    async def open_data(self, producer_ids: Sequence[int], limit: int | None = None) -> list[pb.OpenMemberData]:
        """The open data of members, by partition, at all leaders that answer; about `limit` entries per leader at most."""
        ask = partial(self._open_data, producer_ids=list(producer_ids), limit=limit)
        return list(chain.from_iterable(await self._answers(self._peers.leaders(), ask)))

    async def _open_data(self, node_id: int, producer_ids: list[int], limit: int | None) -> list[pb.OpenMemberData]:
        found: list[pb.OpenMemberData] = []
        for ids in _pieces(producer_ids, IDS_MAX):
            request = pb.OpenDataRequest(coordinator_epoch=self._epoch(), producer_ids=ids)
            while True:
                response = await self._ask(node_id, request, pb.OpenDataResponse)
                found += response.data
                if not response.more or (limit is not None and len(found) >= limit):
                    break
                last = response.data[-1]
                del request.producer_ids[: list(request.producer_ids).index(last.producer_id)]
                request.after.CopyFrom(_place(last))
        return found

    async def hanging(self) -> list[pb.HangingPartition]:
        """The partitions whose last stable offset is held back, at all leaders that answer."""
        return list(chain.from_iterable(await self._answers(self._peers.leaders(), self._hanging)))

    async def _hanging(self, node_id: int) -> list[pb.HangingPartition]:
        found: list[pb.HangingPartition] = []
        request = pb.HangingPartitionsRequest(coordinator_epoch=self._epoch())
        while True:
            response = await self._ask(node_id, request, pb.HangingPartitionsResponse)
            found += response.partitions
            if not response.more:
                return found
            request.after.CopyFrom(_place(response.partitions[-1]))

    async def _ask(self, node_id: int, request: Message, response_type: type[R]) -> R:
        if node_id == self._peers.node_id:
            answered: R = await self._members.answer(request)
            return answered
        return await self._peers.call(node_id, request, response_type)

    async def _answers(self, nodes: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> list[T]:
        """The responses of the nodes that answer."""
        nodes = list(nodes)  # the set of live nodes changes meanwhile
        answers = await _each(map(ask, nodes))
        for node_id, answered in zip(nodes, answers, strict=True):
            if isinstance(answered, WireError):
                logger.debug("node %d did not say what it has of members: %s", node_id, answered)
        return [answered for answered in answers if not isinstance(answered, WireError)]

    async def _at_leaders(
        self,
        held_back: Iterable[HeldBack],
        ask: Callable[[int, Sequence[HeldBack]], Awaitable[object]],
        nodes: Iterable[int] = (),
    ) -> None:
        """Asks the leaders of all existing partitions, each for its own, and always `nodes`. Once all have answered, raises the
        first error, or NotReadyError if a partition has no leader."""
        by_leader: dict[int, list[HeldBack]] = {node_id: [] for node_id in nodes}
        for one in held_back:
            tp = TopicIdPartition(one.topic_id, one.partition)
            if self._exists(tp):
                by_leader.setdefault(self._peers.leader_of(tp), []).append(one)
        leaderless = by_leader.pop(NO_LEADER, [])
        _raise_first(await _each(ask(node_id, here) for node_id, here in by_leader.items()))
        for one in leaderless:
            raise _no_leader(one)

    def _is_known(self, tp: TopicIdPartition) -> bool:
        """True if this node knows the partition, False if its topic is certainly deleted. Checked before a commit is prepared, so
        that a partition that is unknown later counts as deleted (`_exists`). Raises NotReadyError if this node may not have learned
        of the partition yet, InvalidRequestError if the topic has no such partition."""
        try:
            exists = self._exists(tp)
        except InvalidRequestError as error:
            if self._members.partitions.elects_itself:
                raise
            raise NotReadyError(f"{error.message}, for all that this node knows: retry") from error
        if not exists and not self._members.has_deleted(tp.topic_id):
            raise NotReadyError(f"this node knows no topic {tp.topic_id.hex()} yet: retry")
        return exists

    def _exists(self, tp: TopicIdPartition) -> bool:
        """False if the topic is deleted as far as this node knows. A topic in the image that the directory does not have yet
        exists: an earlier coordinator may have counted its data. Raises InvalidRequestError if the topic has no such partition."""
        try:
            self._members.partitions.leader(tp)
        except UnknownTopicIdError:
            return self._peers.has_topic(tp.topic_id)
        except UnknownTopicOrPartitionError as error:
            raise InvalidRequestError(f"partitions: {error.message}") from None
        except NotLeaderError:
            pass
        return True


class LostMarkers:
    """The outcome of ended members without a marker: which markers to write again, and which outcomes need an operator's decision.
    The data of any other ended member is void. The whole log is searched once for each of them: even without damage a leader's copy
    may lack a marker, for example after an unclean election."""

    def __init__(self, decided: DecidedMembers) -> None:
        self._decided = {
            **dict.fromkeys(decided.aborted, Outcome.ABORTED),
            **dict.fromkeys(decided.committed, Outcome.COMMITTED),
        }
        self._endings: dict[int, Ending] = {}  # of members found by the last sweep

    async def find(
        self,
        ended: Collection[int],
        data: Collection[pb.OpenMemberData],
        read: Callable[[], Iterable[CoordinatorRecord | None]],
        name_of: Callable[[TopicIdPartition], str],
    ) -> None:
        """Determines the outcomes. `ended`: all ended members. `data`: their open data. `read`: reads the whole log, in a thread;
        called only if an outcome is not known yet. Raises DataDirectoryError."""
        found = [(one, _unmarked(one)) for one in data]
        whole = {unmarked.producer_id for _, unmarked in found if unmarked.is_readable and unmarked.lost is None}
        for producer_id in self.undecided(whole):  # this partition's leader had not answered before
            self._endings[producer_id] = Ending(Outcome.ABORTED)
        new = {one.producer_id for one in data} - self._endings.keys()
        if not new:
            return
        unknown_ids = with_lost_markers(unmarked for _, unmarked in found)
        looked_up = await asyncio.to_thread(lambda: endings(new, unknown_ids, read(), self._decided))
        kept = {producer_id: self._endings[producer_id] for producer_id in ended if producer_id in self._endings}
        self._endings = kept | looked_up
        unknown = [
            one for one in found if one[0].producer_id in new and self._endings[one[0].producer_id].outcome is Outcome.UNKNOWN
        ]
        for one, unmarked in unknown[:_UNDECIDED_LOGGED_MAX]:
            logger.error("%s", undecided_text(name_of(TopicIdPartition(one.topic_id, one.partition)), unmarked))
        if len(unknown) > _UNDECIDED_LOGGED_MAX:
            logger.error("and %d more: `brokerd doctor` lists them all", len(unknown) - _UNDECIDED_LOGGED_MAX)

    def committed(self, ended_ids: Iterable[int]) -> dict[Ending, list[int]]:
        """The committed members among these, by commit."""
        commits: dict[Ending, list[int]] = {}
        for producer_id in ended_ids:
            ending = self._endings.get(producer_id)
            if ending is not None and ending.outcome is Outcome.COMMITTED:
                commits.setdefault(ending, []).append(producer_id)
        return commits

    def undecided(self, ended_ids: Iterable[int]) -> list[int]:
        """The members among these whose outcome is unknown."""
        unknown = Ending(Outcome.UNKNOWN)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id) == unknown]

    def void(self, ended_ids: Iterable[int]) -> list[int]:
        """The members among these whose data is void. Excludes members whose data no leader has described: they may be winners."""
        aborted = Ending(Outcome.ABORTED)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id) == aborted]


def _is_counted(ending: Ending, one: pb.OpenMemberData, *, others: bool) -> bool:
    """True if a commit counted this data of a winner; assumed if damage may have taken its marker, or without other nodes."""
    if one.lost_from >= 0 or not others:
        return True
    return TopicIdPartition(one.topic_id, one.partition) in ending.partitions


def _unmarked(one: pb.OpenMemberData) -> UnmarkedData:
    lost = (one.lost_from, one.lost_until) if one.lost_from >= 0 else None
    return UnmarkedData(one.producer_id, one.first_offset, one.end_offset, one.is_readable, lost)


def _place(one: _InPartition) -> pb.Partition:
    return pb.Partition(topic_id=one.topic_id, partition=one.partition)


def _no_leader(one: _InPartition) -> NotReadyError:
    return NotReadyError(f"partition {one.partition} of topic {one.topic_id.hex()} has no leader at present: retry")


def _pieces(entries: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The entries, at most `size` at a time; one empty piece if there are none."""
    if len(entries) <= size:
        yield entries
        return
    for at in range(0, len(entries), size):
        yield entries[at : at + size]


async def _each(work: Iterable[Awaitable[T]]) -> list[T | WireError]:
    """Runs all at once; returns each result or WireError. A single awaitable runs without a pause in between."""
    waiting = [*work]
    if len(waiting) == 1:
        try:
            return [await waiting[0]]
        except WireError as error:
            return [error]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, WireError):
            raise one
    return cast("list[T | WireError]", found)


def _raise_first(found: Iterable[object]) -> None:
    for one in found:
        if isinstance(one, WireError):
            raise one
