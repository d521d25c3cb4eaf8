from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Limit(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "software_version", "min_wire_version", "max_wire_version", "limits", "cluster_name")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MIN_WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    software_version: str
    min_wire_version: int
    max_wire_version: int
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    cluster_name: str
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., software_version: _Optional[str] = ..., min_wire_version: _Optional[int] = ..., max_wire_version: _Optional[int] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., cluster_name: _Optional[str] = ...) -> None: ...

class MetadataRequest(_message.Message):
    __slots__ = ("topics", "topic_ids", "all_topics", "include_internal")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    all_topics: bool
    include_internal: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., all_topics: bool = ..., include_internal: bool = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id", "host", "port", "rack", "disk_refuses", "feature_level")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    DISK_REFUSES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    host: str
    port: int
    rack: str
    disk_refuses: bool
    feature_level: int
    def __init__(self, node_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., rack: _Optional[str] = ..., disk_refuses: bool = ..., feature_level: _Optional[int] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("partition", "leader", "leader_epoch", "replicas", "isr", "error", "target", "under_min_isr", "no_copy_alive", "under_replicated")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UNDER_MIN_ISR_FIELD_NUMBER: _ClassVar[int]
    NO_COPY_ALIVE_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    error: _error_pb2.Error
    target: _containers.RepeatedScalarFieldContainer[int]
    under_min_isr: bool
    no_copy_alive: bool
    under_replicated: bool
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., target: _Optional[_Iterable[int]] = ..., under_min_isr: bool = ..., no_copy_alive: bool = ..., under_replicated: bool = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("error", "name", "topic_id", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ...) -> None: ...

class MetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "nodes", "topics", "controller_id", "cluster_name", "is_cut_off")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    controller_id: int
    cluster_name: str
    is_cut_off: bool
    def __init__(self, cluster_id: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ..., controller_id: _Optional[int] = ..., cluster_name: _Optional[str] = ..., is_cut_off: bool = ...) -> None: ...

class FindCoordinatorRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("error", "coordinator")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    coordinator: Node
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., coordinator: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...
