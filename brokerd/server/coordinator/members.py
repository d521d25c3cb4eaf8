"""The leader's side of transactions: open members' data in the partitions that this node leads. Which members may append, the
markers that end them, the holds of commits, and markers that a partition may have lost to damage.

Before a member's first batch, the leader asks the coordinator whether it is open (VerifyMembers), once per member and leadership.
On the coordinator's own node each append looks into its table instead. A member missing there may be open at a later coordinator,
so the coordinator must also confirm that a member has ended. FreezeMembers revokes the confirmation: nothing more is appended for
these members until the coordinator confirms them again, which it does not do while it decides on them. So a commit never covers a
late batch that it did not count.

Each partition derives its open data from its log. This module keeps the record counts and an index of members and partitions:
without it, a commit of ten thousand members over a hundred partitions would take a million look-ups in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from brokerd.coordinator.markers import RecordFor, control_records
from brokerd.coordinator.transactional_id import MEMBER_EPOCH
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.errors import (
    CoordinatorNotAvailableError,
    Fate,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.log_ends import UNSETTLED, Moved
from brokerd.partition.markers import unmarked_data
from brokerd.partition.partition import Partition
from brokerd.purgatory import TimedPurgatory
from brokerd.record.control import encode_control
from brokerd.record.header import BatchHeader
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.server.paging import Pauses
from brokerd.sharing import CALLER
from brokerd.wire.v1.coordinator_log_pb2 import HeldBack

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
K = TypeVar("K")
V = TypeVar("V")
# The most entries in one message to or from another node.
IDS_MAX = 50_000
PARTITIONS_MAX = 10_000
VERIFIED_MAX = 1_000
SETTLED_MAX = 1_000
# Verified members, and members known to have ended: the oldest are dropped first, and the coordinator is asked again.
_KNOWN_MAX = 100_000
_ENDED_MAX = 10_000
_DELETED_MAX = 10_000
_NONE = -1
_MARKER_PIECES = 10  # cost of a marker in units of Pauses, plus one per ten members
_RETRY_AFTER_MS = 200


# By partition and producer id: the damaged range that may have held the marker.
_Lost: TypeAlias = dict[TopicIdPartition, dict[int, tuple[int, int] | None]]


class OpenMember(NamedTuple):
    """A member that may append."""

    transactional_id: str
    member_id: bytes


class Peers(Protocol):
    """The cluster in this node's image, and calls to its other nodes."""

    @property
    def node_id(self) -> int:
        """This node's id."""

    def leader_of(self, tp: TopicIdPartition, /) -> int:
        """The node id of a partition's leader; NO_LEADER if there is none."""

    def leaders(self) -> Collection[int]:
        """The live nodes that lead any partition, including this one if it does."""

    def has_topic(self, topic_id: bytes, /) -> bool:
        """True if the cluster has this topic; this node's directory may not have it yet."""

    async def call(self, node_id: int, request: Message, response_type: type[R], /) -> R:
        """Another node's response to a request of the Internode service. The method is named like the request, without `Request`.
        Raises the WireError in the response; NotReadyError if the node cannot be reached."""


class Coordinator(Protocol):
    """What the leader's side asks of the coordinator, if it is on this node (transactions.py, which builds on this module)."""

    @property
    def epoch(self) -> int:
        """The leader epoch of its log."""

    def open_member(self, producer_id: int) -> OpenMember | None:
        """The member; None if it is not open. Raises CoordinatorNotAvailableError while it is being decided."""

    def renew(self, producer_id: int) -> None:
        """Renews a member's time-out. No effect for other producer ids."""

    async def verify_members(self, asked: pb.VerifyMembersRequest) -> pb.VerifyMembersResponse:
        """The members that are open. Raises retriable errors."""

    async def prepared_holds(self, asked: pb.PreparedHoldsRequest) -> pb.PreparedHoldsResponse:
        """What prepared commits hold back. Raises retriable errors."""


class _Verified(NamedTuple):
    """The coordinator's confirmation that a member is open. `leads`: PartitionTable.leads at the request."""

    member: OpenMember
    leads: int


class _Hold(NamedTuple):
    """The partitions here that a commit holds back."""

    version: int
    partitions: set[TopicIdPartition]


class _MemberData:
    """One member's open data over all partitions. `records` includes records in partitions deleted since."""

    __slots__ = ("partitions", "records")

    def __init__(self) -> None:
        self.records = 0
        self.partitions: set[TopicIdPartition] = set()


class Members:
    """See the module docstring. Use it in the event loop only."""

    def __init__(
        self,
        partitions: PartitionTable,
        time: DirectoryTime,
        purgatory: TimedPurgatory,
        peers: Peers,
        hosted: Callable[[], Coordinator | None],
    ) -> None:
        """`hosted`: the coordinator, if this node hosts it and has loaded its log."""
        self.partitions = partitions
        self._time = time
        self._purgatory = purgatory
        self._peers = peers
        self._hosted = hosted
        self._members: dict[int, _MemberData] = {}  # by producer id
        self._partitions: dict[TopicIdPartition, dict[int, None]] = {}  # producer ids
        self._coordinator_epoch = 0  # the highest seen
        self._verified: OrderedDict[int, _Verified] = OrderedDict()  # by producer id, oldest first
        self._ended: OrderedDict[int, None] = OrderedDict()  # producer ids
        self._deleted: OrderedDict[bytes, None] = OrderedDict()  # topic ids
        self._asking: list[set[int]] = []  # members being verified; a freeze removes its members
        self._holds: dict[str, _Hold] = {}  # by transactional id
        self._named: dict[TopicIdPartition, dict[str, int]] = {}  # commits that unsettled partitions wait for, with versions
        self._roles = 0  # number of role changes
        self._settling = asyncio.Lock()
        self._released: dict[str, int] | None = None  # versions released while PreparedHolds is awaited
        self._methods: dict[type[Message], Callable[[Any], Any]] = {
            pb.FreezeMembersRequest: self.freeze,
            pb.WriteMarkersRequest: self.write_markers,
            pb.ReleaseRequest: self.release,
            pb.OpenMembersRequest: self.open_members,
            pb.OpenDataRequest: self.open_data,
            pb.HangingPartitionsRequest: self.hanging_partitions,
        }
        self.partitions.on_role = self._role_changed
        for partition in self.partitions.of_clients():
            self._role_changed(partition)

    async def answer(self, request: Message) -> Any:
        """The response to a coordinator's request. Raises WireErrors."""
        return await self._methods[type(request)](request)

    # Appends

    def open_member(self, header: BatchHeader) -> OpenMember | None:
        """The open member that a batch is from; None if it is from none. There must be no await between this call and the append.
        The epoch of a non-transactional batch is not compared: the partition refuses such a batch from a member.

        Raises CoordinatorNotAvailableError if it is not known whether the member is open; nothing was appended.
        """
        if header.is_transactional and header.producer_epoch != MEMBER_EPOCH:
            return None
        producer_id = header.producer_id
        member = self._known_member(producer_id)
        if member is None and self.verifies and producer_id not in self._ended:
            raise CoordinatorNotAvailableError(
                f"the coordinator has not said whether producer {producer_id} is a member of an open transaction: retry",
                fate=Fate.NOT_APPENDED,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        return member

    def _known_member(self, producer_id: int) -> OpenMember | None:
        """The member, if it is known to be open. Raises CoordinatorNotAvailableError while the coordinator here decides on it."""
        hosted = self._coordinator_here()
        if hosted is not None:
            return hosted.open_member(producer_id)
        verified = self._verified.get(producer_id)
        return verified.member if verified is not None and verified.leads == self.partitions.leads else None

    @property
    def verifies(self) -> bool:
        """True if `verify` must be called before an append: another node is, or may be, the coordinator."""
        return not self.partitions.elects_itself

    async def verify(self, producer_ids: Iterable[int]) -> None:
        """Asks the coordinator about members not known to be open or ended. If it does not answer, their batches are refused with a
        retriable error."""
        try:
            unknown = [one for one in dict.fromkeys(producer_ids) if one not in self._ended and self._known_member(one) is None]
            for at in range(0, len(unknown), VERIFIED_MAX):
                await self._verify(unknown[at : at + VERIFIED_MAX])
        except WireError as error:
            logger.debug("the coordinator did not verify members: %s", error)

    async def _verify(self, producer_ids: Sequence[int]) -> None:
        leads, asking = self.partitions.leads, set(producer_ids)
        self._asking.append(asking)
        try:
            request, hosted = pb.VerifyMembersRequest(producer_ids=producer_ids), self._coordinator_here()
            answered = await (hosted.verify_members(request) if hosted else self._ask(request, pb.VerifyMembersResponse))
        finally:
            self._asking = [one for one in self._asking if one is not asking]
        self._accept(answered.coordinator_epoch)
        for one in answered.members:
            if one.producer_id in asking:
                self._learn(one, leads)

    def _learn(self, one: pb.VerifiedMember, leads: int) -> None:
        if one.state == pb.MEMBER_STATE_OPEN:
            verified = _Verified(OpenMember(one.transactional_id, one.member_id), leads)
            _remember(self._verified, one.producer_id, verified, _KNOWN_MAX)
        elif one.state == pb.MEMBER_STATE_ENDED:
            self._verified.pop(one.producer_id, None)
            _remember(self._ended, one.producer_id, None, _ENDED_MAX)

    def appended(self, producer_id: int, tp: TopicIdPartition, records: int) -> None:
        """Counts a member's appended records (0 for a duplicate). Renews it if the coordinator is here; elsewhere heartbeats do."""
        self._count(producer_id, tp, records)
        hosted = self._hosted()
        if hosted is not None:
            hosted.renew(producer_id)

    def forget(self, tp: TopicIdPartition) -> None:
        """Drops a partition whose topic is deleted."""
        for producer_id in list(self._partitions.get(tp, ())):
            self._end(producer_id, tp)
        self._named.pop(tp, None)
        self.deleted([tp.topic_id])

    def deleted(self, topic_ids: Iterable[bytes]) -> None:
        """Notes that topics are certainly deleted."""
        for topic_id in topic_ids:
            _remember(self._deleted, topic_id, None, _DELETED_MAX)

    def has_deleted(self, topic_id: bytes) -> bool:
        """True if this node has seen the topic's deletion. In a cluster, a topic unknown to this node may also be a new one that it
        has yet to learn of."""
        return self.partitions.elects_itself or topic_id in self._deleted

    @property
    def producer_ids(self) -> AbstractSet[int]:
        """Members with open data in any partition."""
        return self._members.keys()

    def _coordinator_here(self) -> Coordinator | None:
        hosted = self._hosted()
        return hosted if hosted is not None and hosted.epoch >= self._coordinator_epoch else None

    def _accept(self, epoch: int) -> None:
        """Raises NotCoordinatorError for a coordinator that has been replaced. A new coordinator verifies all members again."""
        if epoch < self._coordinator_epoch:
            raise NotCoordinatorError(f"coordinator_epoch is {epoch}, but {self._coordinator_epoch} has begun since")
        if epoch > self._coordinator_epoch:
            self._coordinator_epoch = epoch
            self._verified.clear()
            for asking in self._asking:
                asking.clear()

    # What the coordinator asks

    async def freeze(self, asked: pb.FreezeMembersRequest) -> pb.FreezeMembersResponse:
        """Takes no more batches of these members, waits until their data is below the high watermarks, and describes it. Raises
        NotLeaderError if this node does not lead a named partition, NotCoordinatorError, OffsetNotAvailableError."""
        self._accept(asked.coordinator_epoch)
        self._take_back(asked.producer_ids)
        wanted, roles = frozenset(asked.producer_ids), -1
        while roles != self._roles:  # the counts and holds below must be of the same partitions
            roles = self._roles
            for one in asked.partitions:
                self.partitions.leader(TopicIdPartition(one.topic_id, one.partition))
            tps = self._partitions_of(wanted)
            await self._until_durable(tps, wanted)
            self._accept(asked.coordinator_epoch)
        response = pb.FreezeMembersResponse(roles=roles)
        not_durable = self._not_durable()
        for producer_id in asked.producer_ids:
            data = self._members.get(producer_id)
            if data is not None:
                is_durable = producer_id not in not_durable
                response.members.add(producer_id=producer_id, records=data.records, is_durable=is_durable)
        page, response.more = _page(tps, asked.after)
        for tp in page:
            partition = self._led(tp)
            first_offset = partition.producers.first_open_offset(wanted) if partition is not None else None
            if first_offset is not None:
                response.held_back.add(topic_id=tp.topic_id, partition=tp.partition, first_offset=first_offset)
        return response

    async def write_markers(self, asked: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        """Appends a control batch to each partition that still holds data of the members. Returns once these are durable, and those
        of earlier attempts. Partitions deleted meanwhile need none.

        Raises StorageError and others if a marker cannot be written or made durable: repeat the request.
        """
        self._accept(asked.coordinator_epoch)
        ended = (*asked.committed_producer_ids, *asked.aborted_producer_ids)
        self._take_back(ended)
        record_for = control_records(
            asked.transactional_id,
            asked.txn_version,
            committed=asked.committed_producer_ids,
            aborted=asked.aborted_producer_ids,
        )
        placed: Sequence[HeldBack] = asked.partitions or [
            HeldBack(topic_id=tp.topic_id, partition=tp.partition, first_offset=_NONE)
            for tp in self._partitions_of(frozenset(ended))
        ]
        failed: WireError | None = None
        waited: list[Appended] = []
        pauses = Pauses()
        for one in placed:
            tp = TopicIdPartition(one.topic_id, one.partition)
            await pauses.after(_MARKER_PIECES + len(self._partitions.get(tp, ())) // 10)
            self._accept(asked.coordinator_epoch)
            try:
                partition = self._write(tp, record_for, asked, one.first_offset)
            except WireError as error:
                failed = failed or error
                continue
            # Also without a new marker: one of an earlier attempt may not be durable yet.
            if partition is not None and partition.ends.high_watermark < (end := partition.ends.log_end_offset):
                waited.append(Appended(partition, end - 1, partition.leader_epoch))
        for problem in (await wait_durable(self._purgatory, waited)).values():
            if not isinstance(problem, UnknownTopicIdError):
                failed = failed or problem
        if failed is not None:
            raise failed
        return pb.WriteMarkersResponse()

    def _write(
        self, tp: TopicIdPartition, record_for: RecordFor, asked: pb.WriteMarkersRequest, first_offset: int
    ) -> Partition | None:
        """Writes the marker if it is missing; returns the partition, or None if its topic is deleted. Raises WireErrors."""
        partition = self._led(tp)
        if partition is None:
            try:
                self.partitions.leader(tp)  # raises NotLeaderError if another node, or none, leads the partition
            except UnknownTopicIdError:
                if self._peers.has_topic(tp.topic_id):
                    raise NotReadyError(f"this node does not have partition {tp} yet", fate=Fate.NOT_APPENDED) from None
            self.forget(tp)
            return None
        record = record_for(self._partitions.get(tp, {}).keys())
        if record is not None:
            record.coordinator_epoch = asked.coordinator_epoch
            now_ms, ahead_ms = self._time.stamp_ms()
            batch = encode_control(record, tp, timestamp_ms=now_ms)
            if first_offset >= 0:
                self.hold(asked.transactional_id, asked.txn_version, tp, first_offset)
            partition.append_marker(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, caller=CALLER.get())
            for producer_id in (*record.committed_producer_ids, *record.aborted_producer_ids):
                self._end(producer_id, tp)
        return partition

    def hold(self, transactional_id: str, version: int, tp: TopicIdPartition, first_offset: int) -> None:
        """Keeps a last stable offset below a commit's data until its `release`, even if its marker is already written."""
        hold = self._holds.get(transactional_id)
        if hold is not None and hold.version != version:  # the held commit is complete, or this one could not be decided
            self._release({transactional_id: self._holds.pop(transactional_id).partitions})
            hold = None
        if hold is None:
            hold = self._holds[transactional_id] = _Hold(version, set())
        partition = self.partitions.get(tp)
        if partition is not None:
            hold.partitions.add(tp)
            partition.hold_back(transactional_id, first_offset)

    async def release(self, asked: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """Makes the markers of a commit take effect in all its partitions here, atomically. Raises NotCoordinatorError."""
        self._accept(asked.coordinator_epoch)
        name, version = asked.transactional_id, asked.txn_version
        hold = self._holds.get(name)
        held = self._holds.pop(name).partitions if hold is not None and hold.version <= version else set()
        waiting = {tp for tp, named in self._named.items() if named.get(name, version + 1) <= version}
        for tp in waiting:
            del self._named[tp][name]
        settled = {tp for tp in waiting if not self._named[tp]}
        for tp in settled:
            del self._named[tp]
        self._release({name: held, UNSETTLED: settled})
        if self._released is not None:
            self._released[name] = max(version, self._released.get(name, version))
        return pb.ReleaseResponse()

    def _release(self, held: Mapping[str, Iterable[TopicIdPartition]]) -> None:
        """`held`: partitions by transactional id, or UNSETTLED."""
        found = ((name, self.partitions.get(tp)) for name, tps in held.items() for tp in tps)
        self.partitions.release([(name, partition) for name, partition in found if partition is not None])

    async def open_members(self, asked: pb.OpenMembersRequest) -> pb.OpenMembersResponse:
        """The members with open data in any partition. Raises NotCoordinatorError."""
        self._accept(asked.coordinator_epoch)
        found = sorted(self._members)
        at = bisect_right(found, asked.after_producer_id)
        page = found[at : at + IDS_MAX]
        return pb.OpenMembersResponse(producer_ids=page, more=len(found) > at + IDS_MAX)

    async def open_data(self, asked: pb.OpenDataRequest) -> pb.OpenDataResponse:
        """The open data of these members, by partition. Raises NotCoordinatorError."""
        self._accept(asked.coordinator_epoch)
        response = pb.OpenDataResponse()
        lost: _Lost = {}
        after = asked.after if asked.HasField("after") else None
        for producer_id in asked.producer_ids:
            member = self._members.get(producer_id)
            tps = sorted(member.partitions) if member is not None else []
            if after is not None:
                tps, after = tps[bisect_right(tps, TopicIdPartition(after.topic_id, after.partition)) :], None
            for tp in tps:
                if len(response.data) == PARTITIONS_MAX:
                    response.more = True
                    return response
                self._describe(producer_id, tp, response, lost)
        return response

    def _describe(self, producer_id: int, tp: TopicIdPartition, response: pb.OpenDataResponse, lost: _Lost) -> None:
        """`lost`: of the damaged partitions described before, all members', since one costs as much as all."""
        partition = self._led(tp)
        data = partition.open_data(producer_id) if partition is not None else None
        if partition is None or data is None:
            return
        described = response.data.add(
            topic_id=tp.topic_id,
            partition=tp.partition,
            producer_id=producer_id,
            first_offset=data.first_offset,
            end_offset=data.end_offset,
            last_stable_offset=partition.ends.last_stable_offset,
            is_readable=data.end_offset > partition.ends.log_start_offset,
            lost_from=_NONE,
            lost_until=_NONE,
        )
        if partition.health.damaged:
            if tp not in lost:
                found = unmarked_data(partition.producers, partition.health.damaged, partition.ends.log_start_offset)
                lost[tp] = {one.producer_id: one.lost for one in found}
            described.lost_from, described.lost_until = lost[tp][producer_id] or (_NONE, _NONE)

    async def hanging_partitions(self, asked: pb.HangingPartitionsRequest) -> pb.HangingPartitionsResponse:
        """The partitions whose last stable offset is held back. Raises NotCoordinatorError."""
        self._accept(asked.coordinator_epoch)
        response = pb.HangingPartitionsResponse()
        held_back = {tp for hold in self._holds.values() for tp in hold.partitions} | self._named.keys()
        page, response.more = _page(sorted(held_back | self._partitions.keys()), asked.after)
        pauses = Pauses()
        for tp in page:
            await pauses.after()
            partition = self._led(tp)
            if partition is None or partition.health.is_deleted:  # deleted meanwhile
                continue
            producer_id = next(iter(partition.producers.open_transactions), None)
            data = partition.open_data(producer_id) if producer_id is not None else None
            commits = [(name, first) for name, first in partition.ends.held_back.items() if name != UNSETTLED]
            commits += [(name, partition.ends.held_back[UNSETTLED]) for name in self._named.get(tp, ())]
            name, first_offset = min(commits, key=itemgetter(1), default=("", 0))
            if data is not None and (not name or first_offset > data.first_offset):
                name, first_offset = "", data.first_offset
            elif not name:
                continue
            response.partitions.add(
                topic_id=tp.topic_id,
                partition=tp.partition,
                transactional_id=name,
                producer_id=_NONE if name or producer_id is None else producer_id,
                first_offset=first_offset,
                last_stable_offset=partition.ends.last_stable_offset,
                last_timestamp=(
                    partition.producers.entries[producer_id].batches[-1].append_timestamp if producer_id is not None else _NONE
                ),
            )
        return response

    # A leader that starts

    async def settle(self) -> bool:
        """Asks the coordinator which commits are prepared in unsettled partitions, and releases the partitions without any. One
        with prepared commits waits for their Release, or for the next answer: the coordinator may release them at the previous
        leader. A partition without transactional records after the last stable offset that it kept needs no answer. True once no
        partition is unsettled; otherwise call it again later."""
        async with self._settling:
            unknown = {one: one.leader_epoch for one in self.partitions.of_clients() if _is_unsettled(one)}
            asked = dict[Partition, int]()
            for partition, epoch in unknown.items():
                if not partition.leads_in(epoch) or UNSETTLED not in partition.ends.held_back:
                    continue
                from_offset = partition.ends.held_back[UNSETTLED]
                try:
                    has_any = await asyncio.to_thread(partition.look_ups.has_transactions, from_offset)
                except WireError:
                    has_any = True
                if has_any:
                    asked[partition] = epoch
                elif partition.leads_in(epoch):
                    self._named.pop(partition.tp, None)
                    partition.wake(partition.release(UNSETTLED))
            try:
                for at in range(0, len(asked), SETTLED_MAX):
                    await self._settle(dict(list(asked.items())[at : at + SETTLED_MAX]))
            except WireError as error:
                logger.debug("what commits hold back is not known yet: %s", error)
            return not any(_is_unsettled(partition) for partition in unknown)

    async def _settle(self, partitions: Mapping[Partition, int]) -> None:
        """`partitions`: with the leader epochs at the request. The response is void in a later one: another node may have led in
        between."""
        request = pb.PreparedHoldsRequest()
        for partition in partitions:
            request.partitions.add(topic_id=partition.tp.topic_id, partition=partition.tp.partition)
        # Records that readers have seen stay visible: their commit was being released.
        shown = {partition.tp: partition.ends.announced_stable_offset for partition in partitions}
        found: list[pb.PreparedHold] = []
        self._released = {}
        try:
            while True:
                answered = await self._ask_holds(request)
                self._accept(answered.coordinator_epoch)
                found += answered.commits
                if not answered.more:
                    break
                request.after_transactional_id = answered.commits[-1].transactional_id
            led = [partition for partition, epoch in partitions.items() if partition.leads_in(epoch)]
            named: dict[TopicIdPartition, dict[str, int]] = {}
            firsts = dict[TopicIdPartition, int]()
            for commit in found:
                name, version = commit.transactional_id, commit.txn_version
                if version > self._released.get(name, _NONE):
                    for one in commit.held_back:
                        tp = TopicIdPartition(one.topic_id, one.partition)
                        named.setdefault(tp, {})[name] = version
                        firsts[tp] = min(one.first_offset, firsts.get(tp, one.first_offset))
        finally:
            self._released = None
        moved = list[tuple[Partition, Moved]]()
        for partition in led:
            tp = partition.tp
            if tp in named:
                self._named[tp] = named[tp]
                moved.append((partition, partition.ends.hold_back(UNSETTLED, max(firsts[tp], shown[tp]))))
            else:
                self._named.pop(tp, None)
        self._release({UNSETTLED: [partition.tp for partition in led if partition.tp not in named]})
        for partition, ends in moved:
            partition.wake(ends)

    async def _ask_holds(self, request: pb.PreparedHoldsRequest) -> pb.PreparedHoldsResponse:
        hosted = self._coordinator_here()
        return await (hosted.prepared_holds(request) if hosted else self._ask(request, pb.PreparedHoldsResponse))

    async def _ask(self, request: Message, response_type: type[R]) -> R:
        """The response of the coordinator on another node. Raises WireErrors."""
        node_id = self._peers.leader_of(COORDINATOR_LOG)
        if node_id in (NO_LEADER, self._peers.node_id):
            raise CoordinatorNotAvailableError("there is no coordinator at present")
        return await self._peers.call(node_id, request, response_type)

    # The index

    def _role_changed(self, partition: Partition) -> None:
        """A partition has another role or epoch: counts its open data if this node leads it, and drops it otherwise."""
        tp = partition.tp
        if tp == COORDINATOR_LOG:
            return
        self._roles += 1
        self._named.pop(tp, None)
        for producer_id in list(self._partitions.get(tp, ())):
            data = partition.open_data(producer_id)
            self._members[producer_id].records -= data.records if data is not None else 0
            self._end(producer_id, tp)
        if not partition.is_leader:
            for name, hold in [(name, hold) for name, hold in self._holds.items() if tp in hold.partitions]:
                hold.partitions.discard(tp)
                if not hold.partitions:
                    del self._holds[name]
            return
        for producer_id in partition.producers.open_transactions:
            data = partition.open_data(producer_id)
            assert data is not None, "it is open there"
            self._count(producer_id, tp, data.records)

    def _count(self, producer_id: int, tp: TopicIdPartition, records: int) -> None:
        member = self._members.get(producer_id)
        if member is None:
            member = self._members[producer_id] = _MemberData()
        member.records += records
        if tp not in member.partitions:
            member.partitions.add(tp)
            self._partitions.setdefault(tp, {})[producer_id] = None

    def _end(self, producer_id: int, tp: TopicIdPartition) -> None:
        open_here = self._partitions.get(tp, {})
        if producer_id not in open_here:
            return
        del open_here[producer_id]
        if not open_here:
            del self._partitions[tp]
        member = self._members[producer_id]
        member.partitions.discard(tp)
        if not member.partitions:
            del self._members[producer_id]

    def _partitions_of(self, producer_ids: frozenset[int]) -> list[TopicIdPartition]:
        """Partitions with open data of any of these members, sorted."""
        return sorted(tp for tp, open_here in self._partitions.items() if not producer_ids.isdisjoint(open_here))

    def _take_back(self, producer_ids: Iterable[int]) -> None:
        """Discards the coordinator's confirmations of these members, including those being requested."""
        for producer_id in producer_ids if self._verified or self._asking else ():
            self._verified.pop(producer_id, None)
            for asking in self._asking:
                asking.discard(producer_id)

    async def _until_durable(self, tps: Iterable[TopicIdPartition], producer_ids: frozenset[int]) -> None:
        """Waits until the members' data in these partitions is durable, or cannot become so. Raises NotLeaderError if roles change
        meanwhile, OffsetNotAvailableError."""
        waited = []
        for tp in tps:
            partition = self._led(tp)
            if partition is None or partition.ends.high_watermark >= partition.ends.log_end_offset:
                continue
            partition.latest_offset()  # raises OffsetNotAvailableError while the acknowledged end is unknown
            found = (
                partition.open_data(producer_id) for producer_id in self._partitions.get(tp, {}) if producer_id in producer_ids
            )
            end = max((data.end_offset for data in found if data is not None and not data.is_durable), default=0)
            if end:
                waited.append(Appended(partition, end - 1, partition.leader_epoch))
        for problem in (await wait_durable(self._purgatory, waited)).values():
            if isinstance(problem, NotLeaderError):
                raise problem

    def _not_durable(self) -> set[int]:
        """Members with data that is not durable in some partition."""
        found: set[int] = set()
        for tp, open_here in self._partitions.items():
            partition = self._led(tp)
            if partition is not None and partition.ends.high_watermark < partition.ends.log_end_offset:
                for producer_id in open_here:
                    data = partition.open_data(producer_id)
                    if data is not None and not data.is_durable:
                        found.add(producer_id)
        return found

    def _led(self, tp: TopicIdPartition) -> Partition | None:
        """The partition, if this node leads it."""
        partition = self.partitions.get(tp)
        return partition if partition is not None and partition.is_leader else None


def _remember(known: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Adds the newest entry; beyond the limit, drops the oldest."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > limit:
        known.popitem(last=False)


def _is_unsettled(partition: Partition) -> bool:
    return partition.is_leader and UNSETTLED in partition.ends.held_back


def _page(tps: list[TopicIdPartition], after: pb.Partition) -> tuple[Sequence[TopicIdPartition], bool]:
    """The next page, and whether more follows."""
    at = bisect_right(tps, TopicIdPartition(after.topic_id, after.partition)) if after.topic_id else 0
    return tps[at : at + PARTITIONS_MAX], len(tps) > at + PARTITIONS_MAX
