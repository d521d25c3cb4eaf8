from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ControlRecord(_message.Message):
    __slots__ = ("version", "coordinator_epoch", "transactional_id", "txn_version", "committed_producer_ids", "aborted_producer_ids")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    coordinator_epoch: int
    transactional_id: str
    txn_version: int
    committed_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    aborted_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., txn_version: _Optional[int] = ..., committed_producer_ids: _Optional[_Iterable[int]] = ..., aborted_producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...
