from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("instance_id", "incarnation")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    instance_id: bytes
    incarnation: int
    def __init__(self, instance_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ...) -> None: ...

class PartitionProduce(_message.Message):
    __slots__ = ("topic_id", "partition", "current_leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("correlation_id", "acks", "timeout_ms", "transactional_id", "member_id", "hello", "partitions", "records")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    acks: int
    timeout_ms: int
    transactional_id: str
    member_id: bytes
    hello: Hello
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProduce]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, correlation_id: _Optional[int] = ..., acks: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., transactional_id: _Optional[str] = ..., member_id: _Optional[bytes] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionProduce, _Mapping]]] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PartitionProduceResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "base_offset", "append_timestamp", "is_log_append_time")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    IS_LOG_APPEND_TIME_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _error_pb2.Error
    base_offset: int
    append_timestamp: int
    is_log_append_time: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., base_offset: _Optional[int] = ..., append_timestamp: _Optional[int] = ..., is_log_append_time: bool = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("correlation_id", "error", "results")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: _error_pb2.Error
    results: _containers.RepeatedCompositeFieldContainer[PartitionProduceResult]
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., results: _Optional[_Iterable[_Union[PartitionProduceResult, _Mapping]]] = ...) -> None: ...
