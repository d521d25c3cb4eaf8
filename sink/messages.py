"""A task's message to the driver. Plain data, because it is pickled and sent through Spark; no rule lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from brokerd.producer.core.membership import MemberReport, Totals
from brokerd.sink.transaction_ids import TransactionIds


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """One task's part of a transaction. `totals`: of all rows that it read, whether sent or not. `member` is None if it had no
    rows, or sent none since the version is committed already (`is_skipped`)."""

    ids: TransactionIds
    totals: Totals
    member: MemberReport | None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """One task's write. `rows_per_partition`: topic -> partition -> rows acknowledged."""

    rows_per_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    part: TransactionPart | None = None  # None = at least once: nothing is left to decide
