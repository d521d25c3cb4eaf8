from brokerd.wire.v1 import error_pb2 as _error_pb2
from brokerd.wire.v1 import fetch_pb2 as _fetch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OffsetSpec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFSET_SPEC_UNSPECIFIED: _ClassVar[OffsetSpec]
    OFFSET_SPEC_EARLIEST: _ClassVar[OffsetSpec]
    OFFSET_SPEC_LATEST: _ClassVar[OffsetSpec]
    OFFSET_SPEC_TIMESTAMP: _ClassVar[OffsetSpec]
    OFFSET_SPEC_AFTER_BYTES: _ClassVar[OffsetSpec]
    OFFSET_SPEC_GIVEN: _ClassVar[OffsetSpec]
    OFFSET_SPEC_LAST_RECORDS: _ClassVar[OffsetSpec]
    OFFSET_SPEC_BACKLOG: _ClassVar[OffsetSpec]
OFFSET_SPEC_UNSPECIFIED: OffsetSpec
OFFSET_SPEC_EARLIEST: OffsetSpec
OFFSET_SPEC_LATEST: OffsetSpec
OFFSET_SPEC_TIMESTAMP: OffsetSpec
OFFSET_SPEC_AFTER_BYTES: OffsetSpec
OFFSET_SPEC_GIVEN: OffsetSpec
OFFSET_SPEC_LAST_RECORDS: OffsetSpec
OFFSET_SPEC_BACKLOG: OffsetSpec

class PartitionListOffsets(_message.Message):
    __slots__ = ("topic_id", "partition", "current_leader_epoch", "spec", "timestamp", "from_offset", "until_offset", "max_bytes", "position", "record_count")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    spec: OffsetSpec
    timestamp: int
    from_offset: int
    until_offset: int
    max_bytes: int
    position: _fetch_pb2.LogPosition
    record_count: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., spec: _Optional[_Union[OffsetSpec, str]] = ..., timestamp: _Optional[int] = ..., from_offset: _Optional[int] = ..., until_offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., position: _Optional[_Union[_fetch_pb2.LogPosition, _Mapping]] = ..., record_count: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("isolation_level", "partitions")
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    isolation_level: _fetch_pb2.IsolationLevel
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionListOffsets]
    def __init__(self, isolation_level: _Optional[_Union[_fetch_pb2.IsolationLevel, str]] = ..., partitions: _Optional[_Iterable[_Union[PartitionListOffsets, _Mapping]]] = ...) -> None: ...

class PartitionListOffsetsResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "offset", "timestamp", "leader_epoch", "size_bytes", "leader_epoch_id", "epoch_start_offset", "truncation", "log_start_offset", "lag_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _error_pb2.Error
    offset: int
    timestamp: int
    leader_epoch: int
    size_bytes: int
    leader_epoch_id: int
    epoch_start_offset: int
    truncation: _error_pb2.Error
    log_start_offset: int
    lag_ms: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., offset: _Optional[int] = ..., timestamp: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., size_bytes: _Optional[int] = ..., leader_epoch_id: _Optional[int] = ..., epoch_start_offset: _Optional[int] = ..., truncation: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., lag_ms: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PartitionListOffsetsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PartitionListOffsetsResult, _Mapping]]] = ...) -> None: ...

class PartitionGroupOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "leader_epoch", "metadata", "error", "commit_timestamp", "leader_epoch_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error: _error_pb2.Error
    commit_timestamp: int
    leader_epoch_id: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., commit_timestamp: _Optional[int] = ..., leader_epoch_id: _Optional[int] = ...) -> None: ...

class CommitGroupOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "offsets")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionGroupOffset]
    def __init__(self, group_id: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[PartitionGroupOffset, _Mapping]]] = ...) -> None: ...

class CommitGroupOffsetsResponse(_message.Message):
    __slots__ = ("error", "results")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    results: _containers.RepeatedCompositeFieldContainer[PartitionGroupOffset]
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., results: _Optional[_Iterable[_Union[PartitionGroupOffset, _Mapping]]] = ...) -> None: ...

class FetchGroupOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "partitions", "after_topic_id", "after_partition")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionGroupOffset]
    after_topic_id: bytes
    after_partition: int
    def __init__(self, group_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionGroupOffset, _Mapping]]] = ..., after_topic_id: _Optional[bytes] = ..., after_partition: _Optional[int] = ...) -> None: ...

class FetchGroupOffsetsResponse(_message.Message):
    __slots__ = ("error", "results", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    results: _containers.RepeatedCompositeFieldContainer[PartitionGroupOffset]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., results: _Optional[_Iterable[_Union[PartitionGroupOffset, _Mapping]]] = ..., more: bool = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("prefix", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class GroupListing(_message.Message):
    __slots__ = ("group_id", "principal", "partitions", "commit_timestamp")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    principal: str
    partitions: int
    commit_timestamp: int
    def __init__(self, group_id: _Optional[str] = ..., principal: _Optional[str] = ..., partitions: _Optional[int] = ..., commit_timestamp: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("error", "groups", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    groups: _containers.RepeatedCompositeFieldContainer[GroupListing]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupListing, _Mapping]]] = ..., more: bool = ...) -> None: ...

class GroupPartition(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group_id", "partitions")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartition]
    def __init__(self, group_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[GroupPartition, _Mapping]]] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("error", "deleted_offsets")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELETED_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    deleted_offsets: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., deleted_offsets: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group_id", "isolation_level", "after_topic_id", "after_partition")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    isolation_level: _fetch_pb2.IsolationLevel
    after_topic_id: bytes
    after_partition: int
    def __init__(self, group_id: _Optional[str] = ..., isolation_level: _Optional[_Union[_fetch_pb2.IsolationLevel, str]] = ..., after_topic_id: _Optional[bytes] = ..., after_partition: _Optional[int] = ...) -> None: ...

class GroupPartitionDescription(_message.Message):
    __slots__ = ("committed", "topic", "log_start_offset", "end_offset", "lag_bytes", "lag_ms")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    committed: PartitionGroupOffset
    topic: str
    log_start_offset: int
    end_offset: int
    lag_bytes: int
    lag_ms: int
    def __init__(self, committed: _Optional[_Union[PartitionGroupOffset, _Mapping]] = ..., topic: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_ms: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("error", "group", "partitions", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    group: GroupListing
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartitionDescription]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., group: _Optional[_Union[GroupListing, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[GroupPartitionDescription, _Mapping]]] = ..., more: bool = ...) -> None: ...
