"""One execution of a transaction inside a broker, and the last stable offsets of its partitions."""

from __future__ import annotations

from brokerd.ids import TopicIdPartition
from tests.support.inner_broker import PRINCIPAL, TransactionBroker, Write, end_request
from tests.support.transaction_bench import Execution

NAME = "spark-q"
ONE = Execution(0, "one", "run")


def stable(broker: TransactionBroker, tps: list[TopicIdPartition]) -> list[int]:
    """The last stable offsets of partitions."""
    return [broker.log(tp).ends.last_stable_offset for tp in tps]


class OneExecution:
    """One member that has written a row to each of two partitions."""

    def __init__(self, broker: TransactionBroker, execution: Execution = ONE) -> None:
        self.broker = broker
        self.execution = execution

    async def begin(self, member_id: bytes = b"m" * 16) -> OneExecution:
        self.tps = await self.broker.topic()
        self.member = await self.broker.init(NAME, self.execution, member_id)
        await self.broker.write(self.member, [Write(tp, b"row") for tp in self.tps])
        return self

    async def commit(self) -> None:
        await self.broker.transactions.commit(PRINCIPAL, end_request(NAME, self.execution, [(self.member, 2)], self.tps, rows=2))

    def visible(self) -> list[list[bytes]]:
        return [self.broker.visible(tp) for tp in self.tps]
