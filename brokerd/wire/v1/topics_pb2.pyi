from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "configs")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    configs: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., validate_only: bool = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "topic_id", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    error: _error_pb2.Error
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "is_default", "documentation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    is_default: bool
    documentation: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., is_default: bool = ..., documentation: _Optional[str] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("partition", "log_start_offset", "last_stable_offset", "high_watermark", "log_end_offset", "size_bytes", "segment_count", "producer_count", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    segment_count: int
    producer_count: int
    error: _error_pb2.Error
    def __init__(self, partition: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segment_count: _Optional[int] = ..., producer_count: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("error", "name", "topic_id", "configs", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    name: str
    topic_id: bytes
    configs: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., configs: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class DescribeTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDescription, _Mapping]]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("name", "total_count", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    total_count: int
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., total_count: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: TopicResult
    def __init__(self, result: _Optional[_Union[TopicResult, _Mapping]] = ...) -> None: ...

class AlterTopicConfigsRequest(_message.Message):
    __slots__ = ("name", "set", "unset", "validate_only")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., validate_only: bool = ...) -> None: ...

class AlterTopicConfigsResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: TopicResult
    def __init__(self, result: _Optional[_Union[TopicResult, _Mapping]] = ...) -> None: ...

class PartitionDeleteRecords(_message.Message):
    __slots__ = ("topic_id", "partition", "before_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    before_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDeleteRecords]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionDeleteRecords, _Mapping]]] = ...) -> None: ...

class PartitionDeleteRecordsResult(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "log_start_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: _error_pb2.Error
    log_start_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PartitionDeleteRecordsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PartitionDeleteRecordsResult, _Mapping]]] = ...) -> None: ...

class PartitionReassignment(_message.Message):
    __slots__ = ("name", "partition", "replicas", "is_order_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IS_ORDER_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    is_order_only: bool
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., is_order_only: bool = ...) -> None: ...

class AlterPartitionReassignmentsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReassignment]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionReassignment, _Mapping]]] = ...) -> None: ...

class PartitionReassignmentResult(_message.Message):
    __slots__ = ("name", "partition", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    error: _error_pb2.Error
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class AlterPartitionReassignmentsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PartitionReassignmentResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PartitionReassignmentResult, _Mapping]]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node_id", "validate_only")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    validate_only: bool
    def __init__(self, node_id: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class NamedPartition(_message.Message):
    __slots__ = ("name", "partition", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    reason: str
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ("error", "moving", "staying", "more_staying", "waiting", "more_waiting", "going", "more_going")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    STAYING_FIELD_NUMBER: _ClassVar[int]
    MORE_STAYING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MORE_WAITING_FIELD_NUMBER: _ClassVar[int]
    GOING_FIELD_NUMBER: _ClassVar[int]
    MORE_GOING_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    moving: int
    staying: _containers.RepeatedCompositeFieldContainer[NamedPartition]
    more_staying: int
    waiting: _containers.RepeatedCompositeFieldContainer[NamedPartition]
    more_waiting: int
    going: _containers.RepeatedCompositeFieldContainer[NamedPartition]
    more_going: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., moving: _Optional[int] = ..., staying: _Optional[_Iterable[_Union[NamedPartition, _Mapping]]] = ..., more_staying: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[NamedPartition, _Mapping]]] = ..., more_waiting: _Optional[int] = ..., going: _Optional[_Iterable[_Union[NamedPartition, _Mapping]]] = ..., more_going: _Optional[int] = ...) -> None: ...

class ElectUncleanLeaderRequest(_message.Message):
    __slots__ = ("name", "partition", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class CopyEnd(_message.Message):
    __slots__ = ("node_id", "leader_epoch", "log_end_offset", "has_stopped")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HAS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    leader_epoch: int
    log_end_offset: int
    has_stopped: bool
    def __init__(self, node_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., has_stopped: bool = ...) -> None: ...

class ElectUncleanLeaderResponse(_message.Message):
    __slots__ = ("error", "copies")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    copies: _containers.RepeatedCompositeFieldContainer[CopyEnd]
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., copies: _Optional[_Iterable[_Union[CopyEnd, _Mapping]]] = ...) -> None: ...
