"""Control batches: the records by which the broker ends transactions in a log. The payload is a length (u32) and a protobuf
ControlRecord, padded to eight bytes. Consumers skip control batches; partitions act on them.
"""

from __future__ import annotations

import pyarrow as pa
from google.protobuf.message import DecodeError

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import Attributes, crc_seed, decode_header, encode_header, new_header
from brokerd.record.schema import payload_crc
from brokerd.wire.v1 import control_pb2

CONTROL_VERSION = 1
PREFIX_BYTES = 4


def encode_control(record: control_pb2.ControlRecord, tp: TopicIdPartition, *, timestamp_ms: int) -> RecordBatch:
    """Builds an unstamped control batch of the record, and sets the record's version."""
    record.version = CONTROL_VERSION
    message = record.SerializeToString(deterministic=True)
    body = len(message).to_bytes(PREFIX_BYTES, "little") + message
    body += bytes(-len(body) % 8)
    header = new_header(
        batch_length=len(body),
        payload_crc=payload_crc(body),
        record_count=1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        uncompressed_bytes=len(body),
        attributes=Attributes.CONTROL | Attributes.TRANSACTIONAL,
    )
    data = encode_header(header, crc_seed(tp)) + body
    return RecordBatch(decode_header(data), pa.py_buffer(data))


def decode_control(batch: RecordBatch) -> control_pb2.ControlRecord:
    """Returns the record of a control batch. Raises CorruptMessageError, UnsupportedVersionError."""
    payload: bytes = pa.py_buffer(batch.payload).to_pybytes()
    if payload_crc(payload) != batch.header.payload_crc:
        raise CorruptMessageError(f"control batch at offset {batch.header.base_offset}: payload_crc does not match")
    length = int.from_bytes(payload[:PREFIX_BYTES], "little")
    record = control_pb2.ControlRecord()
    try:
        if length > len(payload) - PREFIX_BYTES:
            raise DecodeError
        record.ParseFromString(payload[PREFIX_BYTES : PREFIX_BYTES + length])
    except DecodeError:
        raise CorruptMessageError(f"control batch at offset {batch.header.base_offset} cannot be read") from None
    if record.version != CONTROL_VERSION:
        raise UnsupportedVersionError(f"control record version {record.version} is not known; this version reads {CONTROL_VERSION}")
    return record
