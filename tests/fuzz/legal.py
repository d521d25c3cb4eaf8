"""The rules for a client's batch, from the table in ARCHITECTURE.md, with only struct and CRC32C. They judge what the broker
acknowledged, and share no code with brokerd/record.
"""

from __future__ import annotations

import struct

import google_crc32c

_SEED = struct.Struct("<16si")
_ZERO_S = ((6, "<H"), (16, "<q"), (24, "<q"), (32, "<i"), (88, "<Q"))


def why_illegal(data: bytes, topic_id: bytes, partition: int) -> str | None:
    """Why the broker must refuse this batch for that partition; None if header and CRCs are valid."""
    if len(data) < 96 or data[:4] != b"\x89bkd" or data[4] != 1 or data[5] < 12 or len(data) < 8 * data[5]:
        return "mark, version or length of the header"
    header = data[: 8 * data[5]]
    payload = data[8 * data[5] :]

    def field(at: int, code: str) -> int:
        return int(struct.unpack_from(code, data, at)[0])

    if any(field(at, code) for at, code in _ZERO_S):
        return "a field that only the leader may set"
    crc = google_crc32c.extend(google_crc32c.value(_SEED.pack(topic_id, partition)), header[:12] + bytes(4) + header[16:])
    if field(12, "<I") != crc:
        return "header_crc"
    if field(8, "<I") != len(payload) or len(payload) % 8 or not payload:
        return "batch_length"
    if field(36, "<I") != google_crc32c.value(payload):
        return "payload_crc"
    attributes = field(54, "<H")
    if attributes & ~1:
        return "attributes"
    if attributes & 1:
        return "a transaction, of which nobody is a member"
    count = field(60, "<i")
    if count < 1 or field(56, "<i") != count - 1:
        return "counts"
    numbers = (field(40, "<q"), field(48, "<i"), field(52, "<h"))
    if numbers != (-1, -1, -1) and min(numbers) < 0:
        return "producer id, sequence and epoch"
    if field(64, "<q") < 0 or field(72, "<q") < 0 or field(80, "<i"):
        return "timestamps or schema"
    return None
