"""Topic: appends a test's rows, and reads what a pipeline wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from brokerd.testing.channel import Message
    from brokerd.testing.records import Record

Ask = Callable[..., "Message"]
READ_COMMITTED = "read_committed"


class Topic:
    """A topic of a Broker, from `Broker.create_topic` or `Broker.topic`."""

    def __init__(self, name: str, ask: Ask) -> None:
        self.name = name
        self._ask = ask

    def append(self, rows: Iterable[object] | pa.Table | pa.RecordBatch | Any) -> None:
        """Appends rows, in order within each partition; returns once they are durable.

        `rows`: an iterable of values (bytes or text), of pairs (key, value), or of mappings with `key`, `value`, `headers`,
        `timestamp` (datetime, or ms since 1970) and `partition`; or a table with these columns: Arrow's, or a DataFrame of Spark,
        pandas or Polars. Text is encoded as UTF-8. Unless the row names a partition, the key's hash chooses it, as in Kafka's
        default partitioner.

        Raises TypeError and ValueError for rows that are not records, and the producer's errors: BrokerUnreachableError,
        DeliveryTimeoutError, MessageTooLargeError, UnknownTopicOrPartitionError.
        """
        import pyarrow as pa

        from brokerd.testing.records import to_table

        table = to_table(rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self._ask({"do": "append", "topic": self.name}, sink.getvalue())

    def rows(self, isolation_level: str = READ_COMMITTED) -> list[Record]:
        """All records visible to a reader now, by partition and offset. `read_uncommitted` includes those of open and aborted
        transactions. Raises the reader's errors: BrokerUnreachableError, LogDamagedError, UnknownTopicOrPartitionError.
        """
        from brokerd.testing.records import to_records

        return to_records(self.arrow(isolation_level), self.name)

    def arrow(self, isolation_level: str = READ_COMMITTED) -> pa.Table:
        """Like `rows`, as a table with the columns key, value, headers, timestamp, partition, offset, timestampType."""
        import pyarrow as pa

        from brokerd.testing.records import empty_table

        body = self._ask({"do": "rows", "topic": self.name, "isolation_level": isolation_level}).body
        return pa.ipc.open_stream(pa.py_buffer(body)).read_all() if body else empty_table()

    def __repr__(self) -> str:
        return f"<Topic '{self.name}'>"
