"""`brokerd dump-log`: prints the contents of a data directory's files, down to records. offline/dump.py reads them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from brokerd.cli.output import exact_time_text, size_text
from brokerd.cli.record_lines import json_printer
from brokerd.client.columns import BatchSlice, decode_slice
from brokerd.errors import BrokerdError, counted
from brokerd.ids import TopicIdPartition
from brokerd.offline.coordinator_log import describe_records, is_coordinator_log
from brokerd.offline.dump import describe_path
from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch

Entry: TypeAlias = Mapping[str, Any]


def run(args: argparse.Namespace) -> None:
    """Prints all entries. Raises DataDirectoryError if a path does not exist or is not a brokerd file."""
    for path in args.paths:
        for entry in describe_path(path, _decoded if args.print_data else None):
            print(json.dumps(entry, ensure_ascii=False) if args.json else _text(entry))


def _text(entry: Entry) -> str:
    if entry["type"] == "batch":
        return _batch_text(entry)
    if entry["type"] == "problem":
        where = f" at byte {entry['position']}, offset {entry['offset']}" if "position" in entry else ""
        return f"{entry['path']}: PROBLEM{where}: {entry['problem']}"
    if entry["type"] == "segment":
        return f"{entry['path']}: segment from offset {entry['base_offset']}, {size_text(entry['size_bytes'])}"
    lines = [f"{entry['path']}: {entry['type']}"]
    for name, value in entry.items():
        if name not in ("type", "path"):
            lines.extend(_field_lines(name, value))
    return "\n".join(lines)


def _field_lines(name: str, value: Any) -> list[str]:
    """A field as lines of text: one, or several for a dict or a list."""
    if isinstance(value, dict):
        return [f"  {name}:", *(f"    {key}: {_compact(part)}" for key, part in value.items())]
    if isinstance(value, list):
        return [f"  {name}:{'' if value else ' none'}", *(f"    {_compact(part)}" for part in value)]
    return [f"  {name}: {value}"]


def _compact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_compact(part)}" for key, part in value.items()) or "none"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)


def _batch_text(entry: Entry) -> str:
    parts = [
        f"  offsets {entry['base_offset']}-{entry['last_offset']}",
        counted(entry["record_count"], "record"),
        f"{entry['size_bytes']} bytes at {entry['position']}",
        f"epoch {entry['leader_epoch']}",
        f"appended {exact_time_text(entry['append_timestamp'])}",
    ]
    if entry["producer_id"] >= 0:
        parts.append(f"producer {entry['producer_id']} epoch {entry['producer_epoch']} sequence {entry['base_sequence']}")
    parts += [word for word in ("transactional", "control") if entry[f"is_{word}"]]
    parts.append(f"crc {entry['header_crc']} {entry['payload_crc']}")
    text = ", ".join(parts) + (_control_text(entry["control"]) if entry["is_control"] else "")
    return text + "".join(map(_record_text, entry.get("records", ())))


def _control_text(control: Entry) -> str:
    if "problem" in control:
        return f"\n    PROBLEM: {control['problem']}"
    parts = [
        f"\n    ends version {control['txn_version']} of transactional id {json.dumps(control['transactional_id'])}",
        f"commits producers {control['committed_producer_ids']}",
        f"aborts producers {control['aborted_producer_ids']}",
        f"coordinator epoch {control['coordinator_epoch']}",
    ]
    return ", ".join(parts)


def _decoded(tp: TopicIdPartition, batch: RecordBatch) -> list[Any]:
    """The records of a batch, or the problem of decoding them."""
    try:
        if is_coordinator_log(tp):
            return describe_records(batch)
        whole = BatchSlice(tp, batch, batch.header.base_offset, batch.header.next_offset)
        found = decode_slice(whole, max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES, check_crc=True)
    except BrokerdError as error:
        return [{"problem": str(error)}]
    return [] if found is None else [json.loads(line) for line in bytes(json_printer({})(found)).splitlines()]


def _record_text(record: Entry) -> str:
    if "problem" in record:
        return f"\n    PROBLEM: {record['problem']}"
    text = f"\n    offset {record['offset']}, {exact_time_text(record['timestamp'])}, "
    if "event" not in record:
        names = ("key", "key_base64", "value", "value_base64", "headers")
        return text + ", ".join(f"{name} {json.dumps(record[name], ensure_ascii=False)}" for name in names if name in record)
    name_key = "group_id" if "group_id" in record else "transactional_id"
    known = ("offset", "timestamp", name_key, "principal", "event")
    fields = _compact({key: value for key, value in record.items() if key not in known})
    name = record.get(name_key)  # not in records of snapshots and of producer ids
    owner = f"{name_key.replace('_', ' ')} {json.dumps(name)} of {json.dumps(record['principal'])}, " if name else ""
    return f"{text}{owner}{record['event']}: {fields}"
