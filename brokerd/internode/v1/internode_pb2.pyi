from brokerd.wire.v1 import coordinator_log_pb2 as _coordinator_log_pb2
from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_UNSPECIFIED: _ClassVar[MemberState]
    MEMBER_STATE_OPEN: _ClassVar[MemberState]
    MEMBER_STATE_ENDED: _ClassVar[MemberState]
MEMBER_STATE_UNSPECIFIED: MemberState
MEMBER_STATE_OPEN: MemberState
MEMBER_STATE_ENDED: MemberState

class Partition(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class VerifyMembersRequest(_message.Message):
    __slots__ = ("producer_ids",)
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class VerifiedMember(_message.Message):
    __slots__ = ("producer_id", "state", "transactional_id", "member_id")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    state: MemberState
    transactional_id: str
    member_id: bytes
    def __init__(self, producer_id: _Optional[int] = ..., state: _Optional[_Union[MemberState, str]] = ..., transactional_id: _Optional[str] = ..., member_id: _Optional[bytes] = ...) -> None: ...

class VerifyMembersResponse(_message.Message):
    __slots__ = ("error", "coordinator_epoch", "members")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    coordinator_epoch: int
    members: _containers.RepeatedCompositeFieldContainer[VerifiedMember]
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., coordinator_epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[VerifiedMember, _Mapping]]] = ...) -> None: ...

class FreezeMembersRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "producer_ids", "partitions", "after")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    after: Partition
    def __init__(self, coordinator_epoch: _Optional[int] = ..., producer_ids: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., after: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class HeldMember(_message.Message):
    __slots__ = ("producer_id", "records", "is_durable")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    IS_DURABLE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    records: int
    is_durable: bool
    def __init__(self, producer_id: _Optional[int] = ..., records: _Optional[int] = ..., is_durable: bool = ...) -> None: ...

class FreezeMembersResponse(_message.Message):
    __slots__ = ("error", "members", "held_back", "more", "roles")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    members: _containers.RepeatedCompositeFieldContainer[HeldMember]
    held_back: _containers.RepeatedCompositeFieldContainer[_coordinator_log_pb2.HeldBack]
    more: bool
    roles: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., members: _Optional[_Iterable[_Union[HeldMember, _Mapping]]] = ..., held_back: _Optional[_Iterable[_Union[_coordinator_log_pb2.HeldBack, _Mapping]]] = ..., more: bool = ..., roles: _Optional[int] = ...) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "transactional_id", "txn_version", "committed_producer_ids", "aborted_producer_ids", "partitions")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    transactional_id: str
    txn_version: int
    committed_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    aborted_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_coordinator_log_pb2.HeldBack]
    def __init__(self, coordinator_epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., committed_producer_ids: _Optional[_Iterable[int]] = ..., aborted_producer_ids: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[_Union[_coordinator_log_pb2.HeldBack, _Mapping]]] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "transactional_id", "txn_version")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    transactional_id: str
    txn_version: int
    def __init__(self, coordinator_epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class OpenMembersRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "after_producer_id")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    after_producer_id: int
    def __init__(self, coordinator_epoch: _Optional[int] = ..., after_producer_id: _Optional[int] = ...) -> None: ...

class OpenMembersResponse(_message.Message):
    __slots__ = ("error", "producer_ids", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., more: bool = ...) -> None: ...

class OpenDataRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "producer_ids", "after")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    after: Partition
    def __init__(self, coordinator_epoch: _Optional[int] = ..., producer_ids: _Optional[_Iterable[int]] = ..., after: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class OpenMemberData(_message.Message):
    __slots__ = ("topic_id", "partition", "producer_id", "first_offset", "end_offset", "last_stable_offset", "is_readable", "lost_from", "lost_until")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    LOST_UNTIL_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    producer_id: int
    first_offset: int
    end_offset: int
    last_stable_offset: int
    is_readable: bool
    lost_from: int
    lost_until: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., is_readable: bool = ..., lost_from: _Optional[int] = ..., lost_until: _Optional[int] = ...) -> None: ...

class OpenDataResponse(_message.Message):
    __slots__ = ("error", "data", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    data: _containers.RepeatedCompositeFieldContainer[OpenMemberData]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., data: _Optional[_Iterable[_Union[OpenMemberData, _Mapping]]] = ..., more: bool = ...) -> None: ...

class HangingPartitionsRequest(_message.Message):
    __slots__ = ("coordinator_epoch", "after")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    after: Partition
    def __init__(self, coordinator_epoch: _Optional[int] = ..., after: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class HangingPartition(_message.Message):
    __slots__ = ("topic_id", "partition", "transactional_id", "producer_id", "first_offset", "last_stable_offset", "last_timestamp")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    transactional_id: str
    producer_id: int
    first_offset: int
    last_stable_offset: int
    last_timestamp: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., last_timestamp: _Optional[int] = ...) -> None: ...

class HangingPartitionsResponse(_message.Message):
    __slots__ = ("error", "partitions", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    partitions: _containers.RepeatedCompositeFieldContainer[HangingPartition]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[HangingPartition, _Mapping]]] = ..., more: bool = ...) -> None: ...

class PreparedHoldsRequest(_message.Message):
    __slots__ = ("partitions", "after_transactional_id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AFTER_TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    after_transactional_id: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., after_transactional_id: _Optional[str] = ...) -> None: ...

class PreparedHold(_message.Message):
    __slots__ = ("transactional_id", "txn_version", "held_back")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    txn_version: int
    held_back: _containers.RepeatedCompositeFieldContainer[_coordinator_log_pb2.HeldBack]
    def __init__(self, transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., held_back: _Optional[_Iterable[_Union[_coordinator_log_pb2.HeldBack, _Mapping]]] = ...) -> None: ...

class PreparedHoldsResponse(_message.Message):
    __slots__ = ("error", "coordinator_epoch", "commits", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    coordinator_epoch: int
    commits: _containers.RepeatedCompositeFieldContainer[PreparedHold]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., coordinator_epoch: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[PreparedHold, _Mapping]]] = ..., more: bool = ...) -> None: ...

class CopyEndRequest(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class CopyEndResponse(_message.Message):
    __slots__ = ("error", "leader_epoch", "log_end_offset", "has_stopped")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HAS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    leader_epoch: int
    log_end_offset: int
    has_stopped: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., has_stopped: bool = ...) -> None: ...

class LogTimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogTimeResponse(_message.Message):
    __slots__ = ("error", "log_time_ms", "owed_ms", "rate")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    OWED_MS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    log_time_ms: int
    owed_ms: int
    rate: float
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., log_time_ms: _Optional[int] = ..., owed_ms: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class ReplicaPosition(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "log_end_offset", "durable_end", "log_start_offset", "last_epoch", "last_epoch_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_end_offset: int
    durable_end: int
    log_start_offset: int
    last_epoch: int
    last_epoch_id: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., durable_end: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., last_epoch_id: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("node_id", "node_epoch", "positions", "dropped")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    node_epoch: int
    positions: _containers.RepeatedCompositeFieldContainer[ReplicaPosition]
    dropped: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, node_id: _Optional[int] = ..., node_epoch: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[ReplicaPosition, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class ReplicaUpdate(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "high_watermark", "last_stable_offset", "log_start_offset", "diverges", "common_epoch", "common_end_offset", "snapshot", "record_chunks")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIVERGES_FIELD_NUMBER: _ClassVar[int]
    COMMON_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMON_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _error_pb2.Error
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverges: bool
    common_epoch: int
    common_end_offset: int
    snapshot: bytes
    record_chunks: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., diverges: bool = ..., common_epoch: _Optional[int] = ..., common_end_offset: _Optional[int] = ..., snapshot: _Optional[bytes] = ..., record_chunks: _Optional[int] = ...) -> None: ...

class ReplicateResponse(_message.Message):
    __slots__ = ("updates", "records")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[ReplicaUpdate]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, updates: _Optional[_Iterable[_Union[ReplicaUpdate, _Mapping]]] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...
