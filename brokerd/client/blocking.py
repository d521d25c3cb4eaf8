"""The client for blocking code: the sink, the source, the command line. It has the same calls as BrokerClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from brokerd.client.broker_client import BrokerClient
from brokerd.client.consumer.offsets import NO_POSITIONS, READ_COMMITTED, OffsetAndTimestamp, Wanted
from brokerd.client.group_offsets import GroupDescription, GroupListing, OffsetAndMetadata
from brokerd.client.io.loop_thread import LoopThread
from brokerd.client.metadata import Metadata, ServerInfo
from brokerd.client.topics import NewTopic, TopicDescription
from brokerd.client.transactions import ForgottenId, HangingTransactions, MemberGrant, TransactionDescription, TransactionListing
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import WireError
from brokerd.ids import NO_PRODUCER, LogPosition, ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import Membership, TransactionEnd


class BlockingClient:
    """BrokerClient's calls, each blocking until its response. Thread-safe; close() it when done, or use `with`."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        """Does not connect yet. Raises ConfigError if bootstrap.servers is malformed."""
        self.broker_client = BrokerClient(config, clock if clock is not None else SystemClock())
        self.loop_thread = LoopThread()
        self.loop_thread.at_close(self.broker_client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections and thread. Idempotent."""
        self.loop_thread.close()

    def server_info(self) -> ServerInfo:
        """The broker's version, features and limits."""
        return self.loop_thread.run(self.broker_client.server_info())

    def metadata(self, topics: Sequence[str] | None = None) -> Metadata:
        """Nodes, and topics by name (None = all)."""
        return self.loop_thread.run(self.broker_client.metadata(topics))

    def metadata_by_id(self, topic_ids: Sequence[bytes]) -> Metadata:
        """Nodes, and topics by id."""
        return self.loop_thread.run(self.broker_client.metadata_by_id(topic_ids))

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> dict[str, bytes | WireError]:
        """Creates topics; returns the id of each, or its error."""
        return self.loop_thread.run(self.broker_client.create_topics(topics, validate_only=validate_only))

    def create_topic(self, name: str, partitions: int = 0, configs: Mapping[str, str] | None = None) -> bytes:
        """Creates one topic and returns its id. Raises TopicAlreadyExistsError and the broker's other errors."""
        return _only(self.create_topics([NewTopic(name, partitions, configs or {})]))

    def delete_topics(self, names: Sequence[str]) -> dict[str, bytes | WireError]:
        """Deletes topics; returns the id of each, or its error."""
        return self.loop_thread.run(self.broker_client.delete_topics(names))

    def describe_topics(self, names: Sequence[str] = ()) -> dict[str, TopicDescription | WireError]:
        """Settings, offsets and sizes of topics; of all topics if none is named."""
        return self.loop_thread.run(self.broker_client.describe_topics(names))

    def create_partitions(self, name: str, total_count: int, *, validate_only: bool = False) -> None:
        """Increases a topic's number of partitions."""
        self.loop_thread.run(self.broker_client.create_partitions(name, total_count, validate_only=validate_only))

    def alter_topic_configs(
        self, name: str, *, set_: Mapping[str, str], unset: Sequence[str] = (), validate_only: bool = False
    ) -> None:
        """Changes settings of a topic."""
        self.loop_thread.run(self.broker_client.alter_topic_configs(name, set_=set_, unset=unset, validate_only=validate_only))

    def delete_records(self, before: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int | WireError]:
        """Moves log starts forward."""
        return self.loop_thread.run(self.broker_client.delete_records(before))

    def list_offsets(
        self,
        wanted: Mapping[TopicIdPartition, Wanted],
        isolation: str = READ_COMMITTED,
        positions: Mapping[TopicIdPartition, LogPosition] = NO_POSITIONS,
    ) -> dict[TopicIdPartition, OffsetAndTimestamp | WireError]:
        """Offsets at an end of the log or by time; `positions` are checked beside that."""
        return self.loop_thread.run(self.broker_client.list_offsets(wanted, isolation, positions))

    def list_offsets_by_name(
        self, wanted: Mapping[TopicPartition, Wanted], isolation: str = READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp | WireError]:
        """The same, for partitions by topic name."""
        return self.loop_thread.run(self.broker_client.list_offsets_by_name(wanted, isolation))

    def wait_for_records(self, ends: Mapping[TopicIdPartition, int], isolation: str, *, timeout_ms: int) -> None:
        """Returns once a partition has a record at its offset or above, or after `timeout_ms`, or if the broker cannot be asked."""
        from brokerd.client.consumer.growth import wait_for_records  # brings pyarrow, which most calls do not need

        self.loop_thread.run(wait_for_records(self.broker_client, ends, isolation, timeout_ms=timeout_ms))

    # ---- groups: see GroupCalls

    def commit_group_offsets(
        self, group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata]
    ) -> dict[TopicIdPartition, WireError]:
        """Records how far a group has read, durably on return; returns the errors of the partitions that were refused."""
        return self.loop_thread.run(self.broker_client.groups.commit(group_id, offsets))

    def group_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
    ) -> dict[TopicIdPartition, OffsetAndMetadata | WireError]:
        """How far a group has read these partitions, or all that it has an offset of; those without one are left out."""
        return self.loop_thread.run(self.broker_client.groups.offsets(group_id, partitions))

    def list_groups(self, prefix: str = "") -> list[GroupListing]:
        """Groups whose ids begin with `prefix`, in the order of their ids."""
        return self.loop_thread.run(self.broker_client.groups.listed(prefix))

    def describe_group(self, group_id: str, isolation: str = READ_COMMITTED) -> GroupDescription:
        """How far a group has read, and what it has left to read."""
        return self.loop_thread.run(self.broker_client.groups.describe(group_id, isolation))

    def delete_group(self, group_id: str, partitions: Sequence[TopicIdPartition] = ()) -> int:
        """Forgets a group, or its offsets of some partitions; returns how many offsets it had."""
        return self.loop_thread.run(self.broker_client.groups.delete(group_id, partitions))

    def init_producer_id(self, current: ProducerIdAndEpoch = NO_PRODUCER) -> ProducerIdAndEpoch:
        """A new producer id, or `current` with its epoch increased."""
        return self.loop_thread.run(self.broker_client.init_producer_id(current))

    # ---- transactions: see TransactionCalls

    def init_member(self, membership: Membership) -> MemberGrant:
        """The producer id of a member of a transaction: the same one every time."""
        return self.loop_thread.run(self.broker_client.transactions.init_member(membership))

    def heartbeat(self, membership: Membership) -> None:
        """Tells the broker that a member lives. Raises InvalidTxnStateError if it is not open."""
        self.loop_thread.run(self.broker_client.transactions.heartbeat(membership))

    def end_transaction(self, end: TransactionEnd, *, timeout_ms: int | None = None) -> int:
        """Commits or aborts members of a transaction, asked again until `timeout_ms`; returns the last committed version."""
        return self.loop_thread.run(self.broker_client.transactions.end(end, timeout_ms=timeout_ms))

    def list_transactions(self, state: str = "", prefix: str = "") -> list[TransactionListing]:
        """Transactional ids, in the order of their names."""
        return self.loop_thread.run(self.broker_client.transactions.listed(state, prefix))

    def find_transaction(self, transactional_id: str, *, timeout_ms: int | None = None) -> TransactionListing | None:
        """One transactional id, or None if there is none that this client may see; asked for until `timeout_ms`."""
        return self.loop_thread.run(self.broker_client.transactions.find(transactional_id, timeout_ms=timeout_ms))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Everything about one transactional id."""
        return self.loop_thread.run(self.broker_client.transactions.describe(transactional_id))

    def abort_transaction(self, transactional_id: str, execution_id: str = "") -> int:
        """Aborts the open members of one execution, or all of a transactional id; returns how many."""
        return self.loop_thread.run(self.broker_client.transactions.abort(transactional_id, execution_id))

    def forget_transactional_id(self, transactional_id: str) -> ForgottenId:
        """Has the broker forget a transactional id and its last committed version: any principal may use it from then on."""
        return self.loop_thread.run(self.broker_client.transactions.forget(transactional_id))

    def find_hanging_transactions(self, idle_ms: int) -> HangingTransactions:
        """Transactions that hold back partitions and have been silent for so long, the oldest first."""
        return self.loop_thread.run(self.broker_client.transactions.find_hanging(idle_ms))


def _only(results: Mapping[str, bytes | WireError]) -> bytes:
    (result,) = results.values()
    if isinstance(result, WireError):
        raise result
    return result
