from brokerd.wire.v1 import transaction_pb2 as _transaction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberOpened(_message.Message):
    __slots__ = ("member_id", "producer_id", "txn_version", "execution_id", "run_id", "owner", "timeout_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: bytes
    producer_id: int
    txn_version: int
    execution_id: str
    run_id: str
    owner: str
    timeout_ms: int
    def __init__(self, member_id: _Optional[bytes] = ..., producer_id: _Optional[int] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., owner: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class MembersAborted(_message.Message):
    __slots__ = ("producer_ids",)
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitPrepared(_message.Message):
    __slots__ = ("txn_version", "execution_id", "run_id", "committed_producer_ids", "aborted_producer_ids", "partitions", "totals", "held_back", "one_write", "earlier")
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    ONE_WRITE_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    txn_version: int
    execution_id: str
    run_id: str
    committed_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    aborted_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_transaction_pb2.TransactionPartition]
    totals: _transaction_pb2.TransactionTotals
    held_back: _containers.RepeatedCompositeFieldContainer[HeldBack]
    one_write: bool
    earlier: _containers.RepeatedCompositeFieldContainer[EarlierCommit]
    def __init__(self, txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., committed_producer_ids: _Optional[_Iterable[int]] = ..., aborted_producer_ids: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[_Union[_transaction_pb2.TransactionPartition, _Mapping]]] = ..., totals: _Optional[_Union[_transaction_pb2.TransactionTotals, _Mapping]] = ..., held_back: _Optional[_Iterable[_Union[HeldBack, _Mapping]]] = ..., one_write: bool = ..., earlier: _Optional[_Iterable[_Union[EarlierCommit, _Mapping]]] = ...) -> None: ...

class EarlierCommit(_message.Message):
    __slots__ = ("txn_version", "digest")
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    txn_version: int
    digest: bytes
    def __init__(self, txn_version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class HeldBack(_message.Message):
    __slots__ = ("topic_id", "partition", "first_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    first_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ...) -> None: ...

class CommitCompleted(_message.Message):
    __slots__ = ("txn_version",)
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    txn_version: int
    def __init__(self, txn_version: _Optional[int] = ...) -> None: ...

class VersionRepeated(_message.Message):
    __slots__ = ("txn_version", "execution_id", "run_id")
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    txn_version: int
    execution_id: str
    run_id: str
    def __init__(self, txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class TransactionalIdForgotten(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "leader_epoch", "metadata", "timestamp", "leader_epoch_id", "clock_ahead_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int
    leader_epoch_id: int
    clock_ahead_ms: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., timestamp: _Optional[int] = ..., leader_epoch_id: _Optional[int] = ..., clock_ahead_ms: _Optional[int] = ...) -> None: ...

class OffsetsCommitted(_message.Message):
    __slots__ = ("offsets", "last_timestamp", "clock_ahead_ms")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    last_timestamp: int
    clock_ahead_ms: int
    def __init__(self, offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., last_timestamp: _Optional[int] = ..., clock_ahead_ms: _Optional[int] = ...) -> None: ...

class OffsetsDeletedPartition(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class OffsetsDeleted(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetsDeletedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OffsetsDeletedPartition, _Mapping]]] = ...) -> None: ...

class GroupDeleted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProducerIdsReserved(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class StateBegins(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateEnds(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: int
    def __init__(self, transactional_ids: _Optional[int] = ...) -> None: ...

class CoordinatorRecord(_message.Message):
    __slots__ = ("version", "transactional_id", "group_id", "principal", "timestamp", "in_state", "member_opened", "members_aborted", "commit_prepared", "commit_completed", "version_repeated", "forgotten", "state_begins", "state_ends", "offsets_committed", "offsets_deleted", "group_deleted", "producer_ids_reserved")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    IN_STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_OPENED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_ABORTED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_PREPARED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    VERSION_REPEATED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    STATE_BEGINS_FIELD_NUMBER: _ClassVar[int]
    STATE_ENDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_DELETED_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELETED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    version: int
    transactional_id: str
    group_id: str
    principal: str
    timestamp: int
    in_state: bool
    member_opened: MemberOpened
    members_aborted: MembersAborted
    commit_prepared: CommitPrepared
    commit_completed: CommitCompleted
    version_repeated: VersionRepeated
    forgotten: TransactionalIdForgotten
    state_begins: StateBegins
    state_ends: StateEnds
    offsets_committed: OffsetsCommitted
    offsets_deleted: OffsetsDeleted
    group_deleted: GroupDeleted
    producer_ids_reserved: ProducerIdsReserved
    def __init__(self, version: _Optional[int] = ..., transactional_id: _Optional[str] = ..., group_id: _Optional[str] = ..., principal: _Optional[str] = ..., timestamp: _Optional[int] = ..., in_state: bool = ..., member_opened: _Optional[_Union[MemberOpened, _Mapping]] = ..., members_aborted: _Optional[_Union[MembersAborted, _Mapping]] = ..., commit_prepared: _Optional[_Union[CommitPrepared, _Mapping]] = ..., commit_completed: _Optional[_Union[CommitCompleted, _Mapping]] = ..., version_repeated: _Optional[_Union[VersionRepeated, _Mapping]] = ..., forgotten: _Optional[_Union[TransactionalIdForgotten, _Mapping]] = ..., state_begins: _Optional[_Union[StateBegins, _Mapping]] = ..., state_ends: _Optional[_Union[StateEnds, _Mapping]] = ..., offsets_committed: _Optional[_Union[OffsetsCommitted, _Mapping]] = ..., offsets_deleted: _Optional[_Union[OffsetsDeleted, _Mapping]] = ..., group_deleted: _Optional[_Union[GroupDeleted, _Mapping]] = ..., producer_ids_reserved: _Optional[_Union[ProducerIdsReserved, _Mapping]] = ...) -> None: ...
