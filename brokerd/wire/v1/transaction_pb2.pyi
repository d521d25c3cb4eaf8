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

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_STATE_UNSPECIFIED: _ClassVar[TransactionState]
    TRANSACTION_STATE_EMPTY: _ClassVar[TransactionState]
    TRANSACTION_STATE_OPEN: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARED: _ClassVar[TransactionState]
TRANSACTION_DECISION_UNSPECIFIED: TransactionDecision
TRANSACTION_DECISION_COMMIT: TransactionDecision
TRANSACTION_DECISION_ABORT: TransactionDecision
TRANSACTION_STATE_UNSPECIFIED: TransactionState
TRANSACTION_STATE_EMPTY: TransactionState
TRANSACTION_STATE_OPEN: TransactionState
TRANSACTION_STATE_PREPARED: TransactionState

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
    __slots__ = ("error", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class TransactionMember(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "records")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    records: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

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

class TransactionGroupOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "leader_epoch", "metadata", "expected_offset", "leader_epoch_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    expected_offset: int
    leader_epoch_id: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., expected_offset: _Optional[int] = ..., leader_epoch_id: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "txn_version", "execution_id", "run_id", "decision", "members", "partitions", "totals", "any_skipped", "page", "more_pages", "one_write", "group_id", "group_offsets")
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
    ONE_WRITE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_OFFSETS_FIELD_NUMBER: _ClassVar[int]
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
    one_write: bool
    group_id: str
    group_offsets: _containers.RepeatedCompositeFieldContainer[TransactionGroupOffset]
    def __init__(self, transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., decision: _Optional[_Union[TransactionDecision, str]] = ..., members: _Optional[_Iterable[_Union[TransactionMember, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[TransactionPartition, _Mapping]]] = ..., totals: _Optional[_Union[TransactionTotals, _Mapping]] = ..., any_skipped: bool = ..., page: _Optional[int] = ..., more_pages: bool = ..., one_write: bool = ..., group_id: _Optional[str] = ..., group_offsets: _Optional[_Iterable[_Union[TransactionGroupOffset, _Mapping]]] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

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

class TransactionListing(_message.Message):
    __slots__ = ("transactional_id", "state", "last_version", "txn_version", "open_members", "age_ms", "owner")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    state: TransactionState
    last_version: int
    txn_version: int
    open_members: int
    age_ms: int
    owner: str
    def __init__(self, transactional_id: _Optional[str] = ..., state: _Optional[_Union[TransactionState, str]] = ..., last_version: _Optional[int] = ..., txn_version: _Optional[int] = ..., open_members: _Optional[int] = ..., age_ms: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("state", "prefix", "after")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    prefix: str
    after: str
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("error", "transactions", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionListing]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., transactions: _Optional[_Iterable[_Union[TransactionListing, _Mapping]]] = ..., more: bool = ...) -> None: ...

class OpenPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "first_offset", "last_stable_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    first_offset: int
    last_stable_offset: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ...) -> None: ...

class OpenMember(_message.Message):
    __slots__ = ("member_id", "producer_id", "producer_epoch", "txn_version", "execution_id", "run_id", "owner", "age_ms", "expires_in_ms", "partitions")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    member_id: bytes
    producer_id: int
    producer_epoch: int
    txn_version: int
    execution_id: str
    run_id: str
    owner: str
    age_ms: int
    expires_in_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[OpenPartition]
    def __init__(self, member_id: _Optional[bytes] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., txn_version: _Optional[int] = ..., execution_id: _Optional[str] = ..., run_id: _Optional[str] = ..., owner: _Optional[str] = ..., age_ms: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[OpenPartition, _Mapping]]] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class DescribeTransactionResponse(_message.Message):
    __slots__ = ("error", "listing", "last_execution_id", "last_run_id", "last_totals", "members", "more_members")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_TOTALS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MORE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    listing: TransactionListing
    last_execution_id: str
    last_run_id: str
    last_totals: TransactionTotals
    members: _containers.RepeatedCompositeFieldContainer[OpenMember]
    more_members: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., listing: _Optional[_Union[TransactionListing, _Mapping]] = ..., last_execution_id: _Optional[str] = ..., last_run_id: _Optional[str] = ..., last_totals: _Optional[_Union[TransactionTotals, _Mapping]] = ..., members: _Optional[_Iterable[_Union[OpenMember, _Mapping]]] = ..., more_members: _Optional[int] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "execution_id")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    execution_id: str
    def __init__(self, transactional_id: _Optional[str] = ..., execution_id: _Optional[str] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ("error", "aborted_members")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ABORTED_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    aborted_members: int
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., aborted_members: _Optional[int] = ...) -> None: ...

class ForgetTransactionalIdRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class ForgetTransactionalIdResponse(_message.Message):
    __slots__ = ("error", "last_version", "principal")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    last_version: int
    principal: str
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., last_version: _Optional[int] = ..., principal: _Optional[str] = ...) -> None: ...

class FindHangingTransactionsRequest(_message.Message):
    __slots__ = ("idle_ms",)
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    idle_ms: int
    def __init__(self, idle_ms: _Optional[int] = ...) -> None: ...

class HangingTransaction(_message.Message):
    __slots__ = ("partition", "producer_id", "transactional_id", "idle_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    partition: OpenPartition
    producer_id: int
    transactional_id: str
    idle_ms: int
    def __init__(self, partition: _Optional[_Union[OpenPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., transactional_id: _Optional[str] = ..., idle_ms: _Optional[int] = ...) -> None: ...

class FindHangingTransactionsResponse(_message.Message):
    __slots__ = ("error", "transactions", "more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    error: _error_pb2.Error
    transactions: _containers.RepeatedCompositeFieldContainer[HangingTransaction]
    more: bool
    def __init__(self, error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., transactions: _Optional[_Iterable[_Union[HangingTransaction, _Mapping]]] = ..., more: bool = ...) -> None: ...
