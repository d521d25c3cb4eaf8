from brokerd.wire.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionDecision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_DECISION_UNSPECIFIED: _ClassVar[TransactionDecision]
    TRANSACTION_DECISION_COMMIT: _ClassVar[TransactionDecision]
    TRANSACTION_DECISION_ABORT: _ClassVar[TransactionDecision]
TRANSACTION_DECISION_UNSPECIFIED: TransactionDecision
TRANSACTION_DECISION_COMMIT: TransactionDecision
TRANSACTION_DECISION_ABORT: TransactionDecision

class InitProducerIdRequest(_message.Message):
    __slots__ = ("transactional_id", "txn_version", "execution_id", "run_id", "owner", "member_id", "timeout_ms", "producer_id", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    txn_version: int
    execution_id: str
    run_id: str
    owner: str
    member_id: bytes
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., owner: _Optional[str] = ..., member_id: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class InitProducerIdResponse(_message.Message):
    __slots__ = ("error", "producer_id", "producer_epoch", "last_version", "last_execution_id", "last_run_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    producer_id: int
    producer_epoch: int
    last_version: int
    last_execution_id: str
    last_run_id: str
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., last_version: _Optional[int] = ..., last_execution_id: _Optional[str] = ..., last_run_id: _Optional[str] = ...) -> None: ...

class TransactionMember(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "batches")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    batches: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class TransactionPartition(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class TransactionTotals(_message.Message):
    __slots__ = ("rows", "key_bytes", "value_bytes", "key_hash_sum")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_SUM_FIELD_NUMBER: _ClassVar[int]
    rows: int
    key_bytes: int
    value_bytes: int
    key_hash_sum: int
    def __init__(self, rows: _Optional[int] = ..., key_bytes: _Optional[int] = ..., value_bytes: _Optional[int] = ..., key_hash_sum: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "txn_version", "execution_id", "run_id", "decision", "members", "partitions", "totals", "any_skipped", "page", "more_pages")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    ANY_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    MORE_PAGES_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    txn_version: int
    execution_id: str
    run_id: str
    decision: TransactionDecision
    members: _containers.RepeatedCompositeFieldContainer[TransactionMember]
    partitions: _containers.RepeatedCompositeFieldContainer[TransactionPartition]
    totals: TransactionTotals
    any_skipped: bool
    page: int
    more_pages: bool
    def __init__(self, transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., decision: _Optional[_Union[TransactionDecision, str]] = ..., members: _Optional[_Iterable[_Union[TransactionMember, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[TransactionPartition, _Mapping]]] = ..., totals: _Optional[_Union[TransactionTotals, _Mapping]] = ..., any_skipped: bool = ..., page: _Optional[int] = ..., more_pages: bool = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error", "last_version")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    last_version: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., last_version: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("transactional_id", "txn_version", "execution_id", "member_id")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    txn_version: int
    execution_id: str
    member_id: bytes
    def __init__(self, transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., member_id: _Optional[bytes] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...
