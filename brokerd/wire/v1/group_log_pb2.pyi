from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ...) -> None: ...

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

class GroupLogRecord(_message.Message):
    __slots__ = ("version", "group_id", "principal", "offsets_committed", "offsets_deleted", "group_deleted", "decision")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_DELETED_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELETED_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    version: int
    group_id: str
    principal: str
    offsets_committed: OffsetsCommitted
    offsets_deleted: OffsetsDeleted
    group_deleted: GroupDeleted
    decision: int
    def __init__(self, version: _Optional[int] = ..., group_id: _Optional[str] = ..., principal: _Optional[str] = ..., offsets_committed: _Optional[_Union[OffsetsCommitted, _Mapping]] = ..., offsets_deleted: _Optional[_Union[OffsetsDeleted, _Mapping]] = ..., group_deleted: _Optional[_Union[GroupDeleted, _Mapping]] = ..., decision: _Optional[int] = ...) -> None: ...
