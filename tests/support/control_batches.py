"""Control batches as the format has them: the payload is a protobuf ControlRecord, padded to eight bytes. The broker reads
them (brokerd/record/control.py) and writes none yet; golden bytes keep the form.
"""

from __future__ import annotations

from brokerd.ids import TopicIdPartition
from brokerd.record.control import PREFIX_BYTES
from brokerd.record.header import Attributes, crc_seed, encode_header, new_header
from brokerd.record.payload import payload_crc
from brokerd.wire.v1 import control_pb2


def encode_control(record: control_pb2.ControlRecord, tp: TopicIdPartition, *, timestamp_ms: int) -> bytes:
    """An unstamped control batch of one record. The payload is its length (u32), the message, zeros up to a multiple of 8."""
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
    return encode_header(header, crc_seed(tp)) + body
