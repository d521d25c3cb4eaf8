"""An in-memory broker behind a real gRPC port, for tests of clients. It answers by the wire contract and fails on request. It holds
whole batches per partition as put in (`Partition.put`), so tests can compose histories that no producer writes: gaps, control
batches, aborted transactions. It does not validate, has no durability, and never long-polls: an empty fetch is answered at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
import pyarrow as pa
from google.protobuf.message import Message

from brokerd.client.blocking import LoopThread
from brokerd.errors import (
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    InvalidRequestError,
    LogTruncationError,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, new_topic_id
from brokerd.producer.core.membership import MemberReport, Membership, Totals, TransactionEnd
from brokerd.record.header import crc_seed, decode_header
from brokerd.wire.channel import SERVER_ARGUMENTS
from brokerd.wire.errors import to_proto
from brokerd.wire.methods import OF_COORDINATOR, SERVICE, UNARY
from brokerd.wire.records import join_records, split_records
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.support.broker_model import IdentityModel
from tests.support.records import stamped
from tests.support.transaction_model import TransactionsModel

HEADER_BYTES = 96
LISTED_MAX = 2  # transactional ids per page of a list
RENEWAL = "CommitGroupOffsets of no offset"  # key of `errors` for a commit without offsets


@dataclass
class Partition:
    """A partition's batches, by base offset."""

    tp: TopicIdPartition
    batches: list[tuple[int, int, pa.Buffer]] = field(default_factory=list)  # base offset, next offset, bytes
    leader: int = 0
    leader_epoch: int = 1
    elected_after: dict[str, WireError] = field(default_factory=dict)  # by method: an error raised once, with an election
    log_start_offset: int = 0
    repaired: dict[int, pa.Buffer] = field(default_factory=dict)  # what a check replaces the batch at this offset with
    problem: str = ""  # why there is no leader
    end_offset: int = 0
    last_stable_offset: int | None = None  # None = the end
    first_in_time: int | None = None  # offset that look-ups by time find; None = the end
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer id, first offset, marker offset
    epoch_ids: dict[int, int] = field(default_factory=dict)  # leader epoch ids by first offset, ascending

    def epoch_before(self, offset: int) -> tuple[int, int]:
        """First offset and epoch id of the leader epoch of the record before `offset`; id 0 if there is none."""
        return max(((first, one) for first, one in self.epoch_ids.items() if first < offset), default=(0, 0))

    def latest(self, isolation_level: int) -> int:
        """The end for readers of this isolation level."""
        is_committed = isolation_level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
        return self.end_offset if self.last_stable_offset is None or not is_committed else self.last_stable_offset

    def put(self, data: pa.Buffer, *, at: int | None = None, is_log_append_time: bool = False) -> int:
        """Appends a client's batch, with a gap before it if `at` is higher than the end; returns its base offset."""
        base_offset = self.end_offset if at is None else at
        head = stamped(
            data.slice(0, HEADER_BYTES).to_pybytes(),
            crc_seed(self.tp),
            stamp_flags=int(is_log_append_time),
            base_offset=base_offset,
            append_timestamp=1_800_000_000_000,
            leader_epoch=1,
        )
        self.end_offset = decode_header(head).next_offset
        whole = pa.py_buffer(head + data.slice(HEADER_BYTES).to_pybytes())
        self.batches.append((base_offset, self.end_offset, whole))
        return base_offset

    def read(self, offset: int, max_bytes: int, *, until_offset: int) -> list[pa.Buffer]:
        """Whole batches from the one that contains `offset`; the first is returned even if larger than `max_bytes`."""
        chunks: list[pa.Buffer] = []
        for _, next_offset, data in self.batches:
            if next_offset <= offset or next_offset > until_offset:
                continue
            if chunks and sum(chunk.size for chunk in chunks) + data.size > max_bytes:
                break
            chunks.append(data)
        return chunks

    def check(self, offset: int) -> None:
        """Replaces the batch at `offset` by its repaired version, if any."""
        self.batches = [(base, end, self.repaired.get(base, data) if base == offset else data) for base, end, data in self.batches]

    def reach(self, from_offset: int, until_offset: int, max_bytes: int) -> tuple[int, int]:
        """The end of the last batch that fits in `max_bytes` (at least one batch), and the size of the batches up to it."""
        end = size_bytes = 0
        for base_offset, next_offset, data in self.batches:
            if next_offset > max(from_offset, self.log_start_offset) and base_offset < until_offset:
                if size_bytes and size_bytes + data.size > max_bytes:
                    return end, size_bytes
                end, size_bytes = min(next_offset, until_offset), size_bytes + data.size
        return until_offset, size_bytes


class FakeBroker:
    """Topics in memory, and the faults to come. Created by `fake_broker()`."""

    def __init__(self) -> None:
        self.port = 0
        self.topics: dict[str, list[Partition]] = {}
        self.told: dict[str, list[Partition]] = {}  # what Metadata returns instead, while the node is stale
        self.is_cut_off = False
        self.forbidden: set[str] = set()  # topic names that the caller may not see, whether they exist or not; not in `topics`
        self.calls: Counter[str] = Counter()
        self.leader_epochs: defaultdict[str, list[int]] = defaultdict(list)  # requested current_leader_epochs by method
        self.fetched_offsets: list[int] = []  # fetch_offset of each requested partition, in order
        self.checked_offsets: list[int] = []  # fetch offsets with check_first_batch
        self.hellos: list[produce_pb2.Hello] = []
        self.fail_calls: list[grpc.StatusCode] = []  # status codes of the next unary calls
        self.after: dict[str, Callable[[], None]] = {}  # by method: called after each call
        self.errors: dict[str, list[WireError]] = {}  # by method: errors of the next responses
        self.fetch_delay_s = 0.0  # of each response to a fetch
        self.cut_fetch_after: list[int] = []  # number of responses after which each of the next fetch streams ends
        self.wire_versions = (1, 1)
        self.identities = IdentityModel()
        self.limits: dict[str, int] = {}
        self.node_id = 0
        self.nodes = [self]  # the cluster's nodes, as in its metadata
        self.coordinator: FakeBroker | None = self  # FindCoordinator's answer; a node that is not the coordinator refuses its calls
        self.says_who_leads_not = False  # DescribeGroup reports NOT_LEADER for partitions led elsewhere
        self.is_silent = False  # accepts requests and never answers
        self.transactions = TransactionsModel()  # takes the members' reports for the records held in partitions
        self.ends: list[TransactionEnd] = []  # decided ends, pages joined
        self.pages: list[transaction_pb2.EndTransactionRequest] = []  # all pages received
        self._joined: list[transaction_pb2.EndTransactionRequest] = []
        self.hanging: list[transaction_pb2.HangingTransaction] = []
        self.has_more_hanging = False
        self.groups: dict[str, dict[TopicIdPartition, tuple[int, str]]] = {}
        self.group_epoch_ids: dict[tuple[str, TopicIdPartition], int] = {}  # leader epoch ids of committed offsets
        self.commits: list[dict[int, int]] = []  # offsets by partition number, per commit
        self.renewed: list[str] = []  # group ids

    def create(self, name: str, partitions: int = 1) -> list[Partition]:
        """Creates a topic."""
        topic_id = new_topic_id()
        self.topics[name] = [Partition(TopicIdPartition(topic_id, number)) for number in range(partitions)]
        return self.topics[name]

    def add_partitions(self, name: str, count: int) -> None:
        """Grows a topic to `count` partitions."""
        topic = self.topics[name]
        topic += [Partition(TopicIdPartition(topic[0].tp.topic_id, number)) for number in range(len(topic), count)]

    def partition(self, topic_id: bytes, number: int) -> Partition:
        """The partition of a topic id. Raises UnknownTopicIdError, UnknownTopicOrPartitionError."""
        for partitions in self.topics.values():
            if partitions[0].tp.topic_id == topic_id:
                if number < len(partitions):
                    return partitions[number]
                raise UnknownTopicOrPartitionError(f"no partition {number}")
        raise UnknownTopicIdError(f"no topic has the id {topic_id.hex()}")

    def led(self, method: str, asked: Any) -> Partition:
        """The partition of a request's entry, if this node leads it in the entry's leader epoch. Raises WireErrors."""
        partition = self.partition(asked.topic_id, asked.partition)
        self.leader_epochs[method].append(asked.current_leader_epoch)
        if len(self.nodes) > 1 and partition.leader != self.node_id:
            raise NotLeaderError(f"node {self.node_id} does not lead", current_leader_epoch=partition.leader_epoch)
        if asked.current_leader_epoch < partition.leader_epoch:
            raise FencedLeaderEpochError("older", current_leader=partition.leader, current_leader_epoch=partition.leader_epoch)
        if asked.current_leader_epoch > partition.leader_epoch:
            raise UnknownLeaderEpochError("newer: restored from a copy?", current_leader_epoch=partition.leader_epoch)
        said = partition.elected_after.pop(method, None)
        if said is not None:
            partition.leader_epoch += 1
            raise said
        return partition

    def end_of(self, tp: TopicIdPartition) -> int | None:
        """The end of a partition, or None if there is none."""
        try:
            return self.partition(*tp).end_offset
        except WireError:
            return None

    # ---- unary methods

    async def unary(self, name: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        """One unary call."""
        self.calls[name] += 1
        if self.is_silent:
            await asyncio.Event().wait()
        if self.fail_calls:
            await context.abort(self.fail_calls.pop(0), "told to fail")
        if name in OF_COORDINATOR and self.coordinator is not self:
            refusal: Any = UNARY[name].response()
            refusal.error.CopyFrom(to_proto(NotCoordinatorError(f"node {self.node_id} is not the coordinator")))
            return cast("Message", refusal)
        answer: Message = getattr(self, f"_{name}")(request)
        self.after.get(name, lambda: None)()
        return answer

    def _GetServerInfo(self, request: metadata_pb2.GetServerInfoRequest) -> Message:  # noqa: N802
        least, most = self.wire_versions
        return metadata_pb2.GetServerInfoResponse(
            cluster_id="fake",
            node_id=self.node_id,
            software_version="9.9",
            min_wire_version=least,
            max_wire_version=most,
            limits=[metadata_pb2.Limit(name=name, value=value) for name, value in self.limits.items()],
        )

    def _Metadata(self, request: metadata_pb2.MetadataRequest) -> Message:  # noqa: N802
        answer = metadata_pb2.MetadataResponse(cluster_id="fake", is_cut_off=self.is_cut_off)
        for node in self.nodes:
            answer.nodes.add(node_id=node.node_id, host="127.0.0.1", port=node.port)
        told = self.told or self.topics
        by_id = {partitions[0].tp.topic_id: (name, partitions) for name, partitions in self.topics.items()}  # always current
        asked = [(b"", name, told.get(name)) for name in request.topics]
        asked += [(topic_id, *by_id.get(topic_id, ("", None))) for topic_id in request.topic_ids]
        asked += [(b"", name, told[name]) for name in sorted(told) if request.all_topics]
        for topic_id, name, partitions in asked:
            topic = answer.topics.add(name=name, topic_id=topic_id)
            error = self._error("Metadata")
            if partitions is None:
                error = UnknownTopicIdError("gone") if topic_id else UnknownTopicOrPartitionError(f"there is no topic '{name}'")
            if name in self.forbidden:
                error = TopicAuthorizationFailedError(f"topic '{name}' is not for you")
            if error is not None:
                topic.error.CopyFrom(to_proto(error))
                continue
            assert partitions is not None
            topic.topic_id = partitions[0].tp.topic_id
            for number, partition in enumerate(partitions):
                described = topic.partitions.add(partition=number, leader=partition.leader, leader_epoch=partition.leader_epoch)
                if partition.problem:
                    described.error.CopyFrom(to_proto(NotLeaderError(partition.problem)))
        return answer

    def _FindCoordinator(self, _request: metadata_pb2.FindCoordinatorRequest) -> Message:  # noqa: N802
        error = self._error("FindCoordinator")
        if self.coordinator is None:
            error = CoordinatorNotAvailableError("no node is the coordinator at present")
        if error is not None:
            return metadata_pb2.FindCoordinatorResponse(error=to_proto(error))
        assert self.coordinator is not None
        named = metadata_pb2.Node(node_id=self.coordinator.node_id, host="127.0.0.1", port=self.coordinator.port)
        return metadata_pb2.FindCoordinatorResponse(coordinator=named)

    def _CreateTopics(self, request: topics_pb2.CreateTopicsRequest) -> Message:  # noqa: N802
        answer = topics_pb2.CreateTopicsResponse()
        for new in request.topics:
            result = answer.results.add(name=new.name)
            error = self._error("CreateTopics")
            if error is not None:
                result.error.CopyFrom(to_proto(error))
            elif new.name in self.topics:
                result.error.CopyFrom(to_proto(TopicAlreadyExistsError(f"topic '{new.name}' already exists")))
            else:
                result.topic_id = self.create(new.name, new.partitions or 1)[0].tp.topic_id
        return answer

    def _AlterTopicConfigs(self, request: topics_pb2.AlterTopicConfigsRequest) -> Message:  # noqa: N802
        answer = topics_pb2.AlterTopicConfigsResponse()
        answer.result.name = request.name
        error = self._error("AlterTopicConfigs")
        if error is not None:
            answer.result.error.CopyFrom(to_proto(error))
        return answer

    def _DescribeTopics(self, request: topics_pb2.DescribeTopicsRequest) -> Message:  # noqa: N802
        answer = topics_pb2.DescribeTopicsResponse()
        for name in request.names or sorted(self.topics):
            topic = answer.topics.add(name=name, topic_id=self.topics[name][0].tp.topic_id)
            for number, partition in enumerate(self.topics[name]):
                described = topic.partitions.add(partition=number)
                if partition.leader == self.node_id:
                    described.high_watermark = partition.end_offset
                else:
                    described.MergeFrom(unknown_partition(NotLeaderError("led by another node")))
        return answer

    def _DescribeGroup(self, request: offsets_pb2.DescribeGroupRequest) -> Message:  # noqa: N802
        group = self.groups[request.group_id]
        answer = offsets_pb2.DescribeGroupResponse(group=offsets_pb2.GroupListing(group_id=request.group_id, partitions=len(group)))
        for tp, (offset, metadata) in sorted(group.items()):
            partition, is_led = self.partition(*tp), self.partition(*tp).leader == self.node_id
            entry = answer.partitions.add(log_start_offset=-1, end_offset=-1, lag_bytes=-1, lag_ms=-1)
            entry.committed.topic_id, entry.committed.partition = tp
            entry.committed.offset, entry.committed.metadata = offset, metadata
            if is_led:
                entry.topic = next(name for name, topic in self.topics.items() if partition in topic)
                entry.log_start_offset, entry.end_offset = partition.log_start_offset, partition.end_offset
            elif self.says_who_leads_not:
                entry.committed.error.CopyFrom(to_proto(NotLeaderError("led by another node")))
        return answer

    def _ListOffsets(self, request: offsets_pb2.ListOffsetsRequest) -> Message:  # noqa: N802
        answer = offsets_pb2.ListOffsetsResponse()
        for asked in request.partitions:
            result = answer.results.add(topic_id=asked.topic_id, partition=asked.partition)
            try:
                partition = self.led("ListOffsets", asked)
                error = self._error("ListOffsets")
                if error:
                    raise error
                result.log_start_offset = partition.log_start_offset
                is_earliest = asked.spec == offsets_pb2.OFFSET_SPEC_EARLIEST
                result.offset = partition.log_start_offset if is_earliest else partition.latest(request.isolation_level)
                if asked.spec == offsets_pb2.OFFSET_SPEC_TIMESTAMP and partition.first_in_time is not None:
                    result.offset = partition.first_in_time
                if asked.spec == offsets_pb2.OFFSET_SPEC_LAST_RECORDS:
                    end = min(asked.until_offset or result.offset, result.offset)
                    result.offset = max(partition.log_start_offset, end - asked.record_count)
                if asked.spec == offsets_pb2.OFFSET_SPEC_AFTER_BYTES:
                    result.offset, result.size_bytes = partition.reach(asked.from_offset, asked.until_offset, asked.max_bytes)
                result.lag_ms = -1
                if asked.spec == offsets_pb2.OFFSET_SPEC_BACKLOG and asked.from_offset < result.offset:
                    _, result.size_bytes = partition.reach(asked.from_offset, result.offset, 2**62)
                    result.lag_ms = 7_000
                if asked.spec == offsets_pb2.OFFSET_SPEC_GIVEN:
                    result.offset = asked.from_offset
                result.epoch_start_offset, result.leader_epoch_id = partition.epoch_before(result.offset)
                first, epoch_id = partition.epoch_before(asked.position.offset)
                if asked.HasField("position") and asked.position.leader_epoch_id != epoch_id:
                    sentence = f"offset {asked.position.offset} is of another history"
                    result.truncation.CopyFrom(to_proto(LogTruncationError(sentence, resume_offset=first)))
            except WireError as error:
                result.error.CopyFrom(to_proto(error))
        return answer

    def _InitProducerId(self, request: transaction_pb2.InitProducerIdRequest) -> Message:  # noqa: N802
        error = self._error("InitProducerId")
        if error:
            return transaction_pb2.InitProducerIdResponse(error=to_proto(error))
        if request.transactional_id:
            return self.init_member(request)
        identity = self.identities.init_producer_id(ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
        return transaction_pb2.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)

    def _error(self, name: str) -> WireError | None:
        waiting = self.errors.get(name)
        return waiting.pop(0) if waiting else None

    # ---- transactions and groups

    def init_member(self, request: transaction_pb2.InitProducerIdRequest) -> Message:
        """InitProducerId of a member."""
        member = Membership(
            request.transactional_id,
            request.txn_version,
            request.execution_id,
            request.run_id,
            request.owner,
            request.member_id,
            request.timeout_ms,
        )
        response = transaction_pb2.InitProducerIdResponse()
        try:
            response.producer_id, response.producer_epoch = self.transactions.init(member, self.identities.next_id)
        except WireError as error:
            response.error.CopyFrom(to_proto(error))
        return response

    def _EndTransaction(self, request: transaction_pb2.EndTransactionRequest) -> Message:  # noqa: N802
        self.pages.append(request)
        error = self._error("EndTransaction")
        response = transaction_pb2.EndTransactionResponse()
        try:
            if error is not None:
                raise error
            if request.page == 0:
                self._joined = []
            elif request.page != len(self._joined):
                raise NotReadyError("begin again from page 0")
            self._joined.append(request)
            if not request.more_pages:
                self._decide()
        except WireError as refused:
            response.error.CopyFrom(to_proto(refused))
        return response

    def _decide(self) -> None:
        request = self._joined[0]
        totals = request.totals
        members = [member for page in self._joined for member in page.members]
        partitions = [partition for page in self._joined for partition in page.partitions]
        end = TransactionEnd(
            request.transactional_id,
            request.txn_version,
            request.execution_id,
            request.run_id,
            request.decision == transaction_pb2.TRANSACTION_DECISION_COMMIT,
            [MemberReport(member.producer_id, member.producer_epoch, member.records) for member in members],
            [TopicIdPartition(partition.topic_id, partition.partition) for partition in partitions],
            Totals(totals.rows, totals.key_bytes, totals.value_bytes, totals.key_hash_sum),
            request.any_skipped,
        )
        self.ends.append(end)
        reported = {member.producer_id: member.records for member in end.members}
        self.transactions.end(end, reported.__getitem__)

    def _Heartbeat(self, request: transaction_pb2.HeartbeatRequest) -> Message:  # noqa: N802
        member = Membership(request.transactional_id, request.txn_version, request.execution_id, "", "", request.member_id)
        try:
            self.transactions.heartbeat(member)
        except WireError as error:
            return transaction_pb2.HeartbeatResponse(error=to_proto(error))
        return transaction_pb2.HeartbeatResponse()

    def _ListTransactions(self, request: transaction_pb2.ListTransactionsRequest) -> Message:  # noqa: N802
        names = sorted(name for name in self.transactions.ids if name.startswith(request.prefix) and name > request.after)
        listings = [self._listing(name) for name in names]
        wanted = [
            listing for listing in listings if request.state in (transaction_pb2.TRANSACTION_STATE_UNSPECIFIED, listing.state)
        ]
        return transaction_pb2.ListTransactionsResponse(transactions=wanted[:LISTED_MAX], more=len(wanted) > LISTED_MAX)

    def _listing(self, name: str) -> transaction_pb2.TransactionListing:
        known = self.transactions.ids[name]
        members = [member for _, member in known.open.values()]
        return transaction_pb2.TransactionListing(
            transactional_id=name,
            state=transaction_pb2.TRANSACTION_STATE_OPEN if members else transaction_pb2.TRANSACTION_STATE_EMPTY,
            last_version=known.last_version,
            txn_version=max((member.txn_version for member in members), default=-1),
            open_members=len(members),
            age_ms=7 if members else -1,
            owner=members[-1].owner if members else "",
        )

    def _DescribeTransaction(self, request: transaction_pb2.DescribeTransactionRequest) -> Message:  # noqa: N802
        known = self.transactions.ids.get(request.transactional_id)
        if known is None:
            return transaction_pb2.DescribeTransactionResponse(
                error=to_proto(InvalidRequestError("there is no such transactional id"))
            )
        response = transaction_pb2.DescribeTransactionResponse(listing=self._listing(request.transactional_id))
        if known.last is not None:
            response.last_execution_id, response.last_run_id = known.last.execution_id, known.last.run_id
            response.last_totals.CopyFrom(transaction_pb2.TransactionTotals(**known.last.totals._asdict()))
        for producer_id, member in known.open.values():
            described: Any = response.members.add(producer_id=producer_id, expires_in_ms=member.timeout_ms, age_ms=7)
            for name in ("member_id", "txn_version", "execution_id", "run_id", "owner"):
                setattr(described, name, getattr(member, name))
            described.partitions.add(topic="t", topic_id=bytes(16), partition=3, first_offset=5, last_stable_offset=4)
        return response

    def _AbortTransaction(self, request: transaction_pb2.AbortTransactionRequest) -> Message:  # noqa: N802
        known = self.transactions.ids[request.transactional_id]
        wanted = request.execution_id
        ended = [member_id for member_id, (_, member) in known.open.items() if wanted in ("", member.execution_id)]
        self.transactions.aborted.update(known.end(ended))
        return transaction_pb2.AbortTransactionResponse(aborted_members=len(ended))

    def _FindHangingTransactions(self, request: transaction_pb2.FindHangingTransactionsRequest) -> Message:  # noqa: N802
        found = [one for one in self.hanging if one.idle_ms >= request.idle_ms]
        return transaction_pb2.FindHangingTransactionsResponse(transactions=found, more=self.has_more_hanging)

    def _CommitGroupOffsets(self, request: offsets_pb2.CommitGroupOffsetsRequest) -> Message:  # noqa: N802
        error = self._error("CommitGroupOffsets" if request.offsets else RENEWAL)
        if error is not None:
            return offsets_pb2.CommitGroupOffsetsResponse(error=to_proto(error))
        if not request.offsets:
            self.renewed.append(request.group_id)
            return offsets_pb2.CommitGroupOffsetsResponse()
        self.commits.append({one.partition: one.offset for one in request.offsets})
        response = offsets_pb2.CommitGroupOffsetsResponse()
        for one in request.offsets:
            result = response.results.add(topic_id=one.topic_id, partition=one.partition, offset=one.offset)
            tp = TopicIdPartition(one.topic_id, one.partition)
            end = self.end_of(tp)
            if end is None:
                result.error.CopyFrom(to_proto(UnknownTopicIdError("no such topic")))
            elif one.offset > end:
                result.error.CopyFrom(to_proto(OffsetOutOfRangeError(f"offset {one.offset} is beyond {end}")))
            else:
                self.groups.setdefault(request.group_id, {})[tp] = (one.offset, one.metadata)
                self.group_epoch_ids[request.group_id, tp] = one.leader_epoch_id
        return response

    def _FetchGroupOffsets(self, request: offsets_pb2.FetchGroupOffsetsRequest) -> Message:  # noqa: N802
        error = self._error("FetchGroupOffsets")
        if error is not None:
            return offsets_pb2.FetchGroupOffsetsResponse(error=to_proto(error))
        response = offsets_pb2.FetchGroupOffsetsResponse()
        group = self.groups.get(request.group_id, {})
        for one in request.partitions:
            tp = TopicIdPartition(one.topic_id, one.partition)
            offset, metadata = group.get(tp, (-1, ""))
            response.results.add(
                topic_id=one.topic_id,
                partition=one.partition,
                offset=offset,
                metadata=metadata,
                commit_timestamp=-1,
                leader_epoch=-1,
                leader_epoch_id=self.group_epoch_ids.get((request.group_id, tp), 0),
            )
        return response

    # ---- streams

    async def fetch(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        """A fetch stream."""
        self.calls["Fetch"] += 1
        answers_left = self.cut_fetch_after.pop(0) if self.cut_fetch_after else -1
        async for data in requests:
            if self.is_silent:
                await asyncio.Event().wait()
            if answers_left == 0:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "told to cut the stream")
            answers_left -= 1
            if self.fetch_delay_s:
                await asyncio.sleep(self.fetch_delay_s)
            yield self._fetched(fetch_pb2.FetchRequest.FromString(data))

    def _fetched(self, request: fetch_pb2.FetchRequest) -> bytes:
        answer = fetch_pb2.FetchResponse(correlation_id=request.correlation_id)
        records: list[tuple[pa.Buffer]] = []
        for asked in request.partitions:
            self.fetched_offsets.append(asked.fetch_offset)
            if asked.check_first_batch:
                self.checked_offsets.append(asked.fetch_offset)
            result = answer.results.add(topic_id=asked.topic_id, partition=asked.partition)
            try:
                partition = self.led("Fetch", asked)
                error = self._error("Fetch")
                if error:
                    raise error
                if not partition.log_start_offset <= asked.fetch_offset <= partition.end_offset:
                    raise OffsetOutOfRangeError(
                        f"offset {asked.fetch_offset} is out of range", log_start_offset=partition.log_start_offset
                    )
                is_committed = request.isolation_level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
                if asked.check_first_batch:
                    partition.check(asked.fetch_offset)
                chunks = partition.read(
                    asked.fetch_offset, asked.partition_max_bytes, until_offset=partition.latest(request.isolation_level)
                )
                if records and sum(chunk.size for (chunk,) in records) + sum(chunk.size for chunk in chunks) > request.max_bytes:
                    chunks = []
                result.high_watermark = partition.end_offset
                result.last_stable_offset = partition.latest(fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED)
                result.log_start_offset, result.record_chunks = partition.log_start_offset, len(chunks)
                for producer_id, first_offset, marker_offset in partition.aborted if is_committed else ():
                    result.aborted.add(producer_id=producer_id, first_offset=first_offset, marker_offset=marker_offset)
                records.extend((chunk,) for chunk in chunks)
            except WireError as error:
                result.error.CopyFrom(to_proto(error))
        return join_records(answer, records)

    async def produce(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        """A produce stream."""
        self.calls["Produce"] += 1
        async for data in requests:
            if self.is_silent:
                await asyncio.Event().wait()
            request, records = split_records(produce_pb2.ProduceRequest, data)
            if request.HasField("hello"):
                self.hellos.append(request.hello)
            answer = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            for asked, batch in zip(request.partitions, records, strict=True):
                result = answer.results.add(topic_id=asked.topic_id, partition=asked.partition, base_offset=-1)
                try:
                    result.base_offset = self.led("Produce", asked).put(batch)
                except WireError as error:
                    result.error.CopyFrom(to_proto(error))
            if request.acks:
                yield answer.SerializeToString()


def unknown_partition(error: WireError, number: int = 0) -> topics_pb2.PartitionDescription:
    """A node's description of a partition that it does not lead."""
    names = "log_start_offset last_stable_offset high_watermark log_end_offset size_bytes segment_count producer_count"
    return topics_pb2.PartitionDescription(partition=number, error=to_proto(error), **dict.fromkeys(names.split(), -1))


@contextlib.contextmanager
def fake_broker(port: int = 0) -> Iterator[FakeBroker]:
    """A FakeBroker that serves on `port` (0 = any free one) until the end of the block."""
    with _serving(FakeBroker(), port) as broker:
        yield broker


class FakeCluster:
    """Nodes with shared topics that know each other. Created by `fake_cluster()`."""

    def __init__(self, count: int) -> None:
        self.nodes = [FakeBroker() for _ in range(count)]
        for number, node in enumerate(self.nodes):
            node.node_id, node.nodes, node.topics = number, self.nodes, self.nodes[0].topics
            node.coordinator = self.nodes[0]
        self._serving: dict[int, contextlib.AbstractContextManager[FakeBroker]] = {}

    @property
    def servers(self) -> str:
        """bootstrap.servers of all nodes."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def create(self, name: str) -> list[Partition]:
        """Creates a topic with one partition per node."""
        partitions = self.nodes[0].create(name, len(self.nodes))
        for number, partition in enumerate(partitions):
            partition.leader = number
        return partitions

    def take_for_dead(self, node_id: int) -> None:
        """Removes a node from the other nodes' lists; the node itself does not know."""
        alive = [node for node in self.nodes if node.node_id != node_id]
        for node in alive:
            node.nodes = alive

    def elect_coordinator(self, coordinator: FakeBroker | None) -> None:
        """Makes a node the coordinator; all nodes know."""
        for node in self.nodes:
            node.coordinator = coordinator

    def start(self, node_id: int) -> None:
        """Starts a node on a free port."""
        self._serving[node_id] = _serving(self.nodes[node_id])
        self._serving[node_id].__enter__()

    def stop(self, node_id: int) -> None:
        """Stops a node abruptly; the others still list it."""
        self._serving.pop(node_id).__exit__(None, None, None)

    def stop_all(self) -> None:
        """Stops all running nodes."""
        for node_id in list(self._serving):
            self.stop(node_id)


@contextlib.contextmanager
def fake_cluster(count: int = 3) -> Iterator[FakeCluster]:
    """A FakeCluster that serves until the end of the block."""
    cluster = FakeCluster(count)
    try:
        for node_id in range(count):
            cluster.start(node_id)
        yield cluster
    finally:
        cluster.stop_all()


@contextlib.contextmanager
def _serving(broker: FakeBroker, port: int = 0) -> Iterator[FakeBroker]:
    loop_thread = LoopThread("fake-broker")
    server = loop_thread.run(_serve(broker, port))
    try:
        yield broker
    finally:
        loop_thread.run(server.stop(None))
        loop_thread.close()


async def _serve(broker: FakeBroker, port: int) -> grpc.aio.Server:
    server = grpc.aio.server(options=list(SERVER_ARGUMENTS))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            functools.partial(broker.unary, name),
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
        for name, method in UNARY.items()
    }
    handlers["Fetch"] = grpc.stream_stream_rpc_method_handler(broker.fetch)
    handlers["Produce"] = grpc.stream_stream_rpc_method_handler(broker.produce)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    broker.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server
