from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_LEVEL_READ_UNCOMMITTED: _ClassVar[IsolationLevel]
    ISOLATION_LEVEL_READ_COMMITTED: _ClassVar[IsolationLevel]
ISOLATION_LEVEL_READ_UNCOMMITTED: IsolationLevel
ISOLATION_LEVEL_READ_COMMITTED: IsolationLevel

class LogPosition(_message.Message):
    __slots__ = ("offset", "leader_epoch_id")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    offset: int
    leader_epoch_id: int
    def __init__(self, offset: _Optional[int] = ..., leader_epoch_id: _Optional[int] = ...) -> None: ...

class PartitionFetch(_message.Message):
    __slots__ = ("topic_id", "partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes", "until_offset", "position", "check_first_batch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNTIL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIRST_BATCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    partition_max_bytes: int
    until_offset: int
    position: LogPosition
    check_first_batch: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., partition_max_bytes: _Optional[int] = ..., until_offset: _Optional[int] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ..., check_first_batch: bool = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("correlation_id", "max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "partitions")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: IsolationLevel
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionFetch]
    def __init__(self, correlation_id: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., partitions: _Optional[_Iterable[_Union[PartitionFetch, _Mapping]]] = ...) -> None: ...

class AbortedTransaction(_message.Message):
    __slots__ = ("producer_id", "first_offset", "marker_offset")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MARKER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    first_offset: int
    marker_offset: int
    def __init__(self, producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., marker_offset: _Optional[int] = ...) -> None: ...

class PartitionFetchResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "high_watermark", "last_stable_offset", "log_start_offset", "aborted", "record_chunks")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    RECORD_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _error_pb2.Error
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: _containers.RepeatedCompositeFieldContainer[AbortedTransaction]
    record_chunks: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., aborted: _Optional[_Iterable[_Union[AbortedTransaction, _Mapping]]] = ..., record_chunks: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("correlation_id", "error", "results", "records")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: _error_pb2.Error
    results: _containers.RepeatedCompositeFieldContainer[PartitionFetchResult]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., results: _Optional[_Iterable[_Union[PartitionFetchResult, _Mapping]]] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...
