"""A broker's parts without gRPC, over files that a test can kill: members, batches, decisions, visible values."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import Attributes
from brokerd.server.broker import BrokerParts
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.storage.files import Files
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened
from brokerd.wire.v1.transaction_pb2 import (
    EndTransactionRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    TransactionMember,
    TransactionPartition,
    TransactionTotals,
)
from tests.support.build import raw_batch, readable
from tests.support.transaction_bench import Execution
from tests.support.transactions import read_committed

PRINCIPAL = "anybody"
TIMEOUT_MS = 60_000
_PAYLOAD_BYTES = 32


class Write(NamedTuple):
    """A batch with one record."""

    tp: TopicIdPartition
    value: bytes


class TransactionBroker:
    """A running broker, created by `running`."""

    def __init__(self, logs: LogManager, broker: BrokerParts) -> None:
        self.logs = logs
        self.broker = broker
        self.transactions = broker.transactions
        self.groups = broker.groups

    async def topic(self, name: str = "t", partitions: int = 2) -> list[TopicIdPartition]:
        """The partitions of a topic, creating it if needed."""
        if not self.logs.topics.has(name):
            await self.broker.admin.run(self.logs.changes.create(name, partitions, {}))
        topic_id = self.logs.topics.by_name(name).id
        return [TopicIdPartition(topic_id, partition) for partition in range(partitions)]

    async def init(self, name: str, execution: Execution, member_id: bytes) -> MemberOpened:
        """Opens a member. Raises WireError."""
        asked = InitProducerIdRequest(
            transactional_id=name, member_id=member_id, owner="test", timeout_ms=TIMEOUT_MS, **execution._asdict()
        )
        return await self.transactions.init_member(PRINCIPAL, asked, lambda number: number)

    async def heartbeat(self, name: str, execution: Execution, member_id: bytes) -> None:
        """A member's heartbeat. Raises WireError."""
        version, execution_id, _ = execution
        asked = HeartbeatRequest(transactional_id=name, txn_version=version, execution_id=execution_id, member_id=member_id)
        await self.transactions.heartbeat(PRINCIPAL, asked)

    async def write(self, member: MemberOpened, writes: Iterable[Write]) -> None:
        """Appends batches of a member and waits until they are durable. Raises WireError."""
        waiting = []
        sequences: dict[TopicIdPartition, int] = {}
        for tp, value in writes:
            partition = self.log(tp)
            known = partition.open_data(member.producer_id)
            sequences[tp] = known.records if known is not None else 0
            batch = raw_batch(
                value.ljust(_PAYLOAD_BYTES, b"."),
                producer=ProducerIdAndEpoch(member.producer_id, 0),
                sequence=sequences[tp],
                timestamp_ms=self.broker.clock.wall_ms(),
                attributes=int(Attributes.TRANSACTIONAL),
            )
            is_open = member.producer_id in self.transactions.coordinator.open_members
            last_offset = append_here(partition, batch, self.broker.clock, is_open_member=is_open)
            self.broker.members.appended(member.producer_id, tp, 1)
            waiting.append(Appended(partition, last_offset, partition.leader_epoch))
        for error in (await wait_durable(self.broker.produce_purgatory, waiting)).values():
            raise error

    def log(self, tp: TopicIdPartition) -> Partition:
        """One partition."""
        return self.logs.partitions.leader(tp)

    @property
    def coordinator_log(self) -> Partition:
        """The coordinator's log, which must exist."""
        log = self.logs.partitions.coordinator_log
        assert log is not None
        return log

    def visible(self, tp: TopicIdPartition) -> list[bytes]:
        """The values that readers of committed records see."""
        log = self.log(tp)
        payloads = readable(log)
        offsets = read_committed(log, log.ends.log_start_offset, log.ends.last_stable_offset)
        return [payloads[offset].rstrip(b".") for offset in offsets]


def append_here(partition: Partition, batch: RecordBatch, clock: Clock, *, is_open_member: bool = False) -> int:
    """Appends a batch without waiting for its flush; returns its last offset. Raises WireError."""
    return partition.append(batch, now_wall_ms=clock.wall_ms(), is_open_member=is_open_member).last_offset


def end_request(
    name: str,
    execution: Execution,
    reports: Iterable[tuple[MemberOpened, int]],
    tps: Iterable[TopicIdPartition] = (),
    *,
    rows: int = 0,
) -> EndTransactionRequest:
    """A decision on members, each with its acknowledged record count."""
    return EndTransactionRequest(
        transactional_id=name,
        members=[TransactionMember(producer_id=member.producer_id, records=records) for member, records in reports],
        partitions=[TransactionPartition(**tp._asdict()) for tp in tps],
        totals=TransactionTotals(rows=rows),
        **execution._asdict(),
    )


@contextlib.asynccontextmanager
async def running(files: Files, clock: Clock, *, is_killed: bool = False, **settings: object) -> AsyncIterator[TransactionBroker]:
    """A broker from start to clean stop; without the stop if the block raises, or with `is_killed`."""
    config = dataclasses.replace(BrokerConfig(), **settings)  # type: ignore[arg-type]
    logs = LogManager(config, files, clock)
    logs.open()
    broker = BrokerParts(config, logs, clock)
    try:
        await broker.coordinator.start()
        yield TransactionBroker(logs, broker)
        if not is_killed:
            broker.begin_stop()
            await broker.flusher.drain()
        await _release(broker)
        if not is_killed:
            logs.close()
    except BaseException:
        await _release(broker)
        raise


async def _release(broker: BrokerParts) -> None:
    broker.drop_waiting()
    await broker.coordinator.drain()
    await broker.close()
