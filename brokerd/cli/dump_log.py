"""`brokerd dump-log`: prints the contents of a data directory's files, down to records. offline/dump.py reads them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from brokerd.cli.output import size_text
from brokerd.cli.record_lines import Printer, format_printer, json_printer
from brokerd.client.fetching.columns import decode_slice
from brokerd.client.fetching.positions import BatchSlice
from brokerd.config.client import ConsumerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition
from brokerd.offline.dump import describe_path
from brokerd.offline.own_logs import records_in
from brokerd.record.batch import walk_batches

Entry: TypeAlias = Mapping[str, Any]


def run(args: argparse.Namespace) -> None:
    """Prints all entries. Raises DataDirectoryError if a path does not exist or is not a file of brokerd's."""
    for path in args.paths:
        for entry in describe_path(path):
            if args.json:
                records = {"records": _records(entry)} if args.print_data and _has_records(entry) else {}
                print(json.dumps({**entry, **records}, ensure_ascii=False))
                continue
            print(_text(entry))
            if args.print_data and _has_records(entry):
                sys.stdout.flush()
                sys.stdout.buffer.write(_record_lines(entry))


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
    count = entry["record_count"]
    parts = [
        f"  offsets {entry['base_offset']}-{entry['last_offset']}",
        f"{count} record{'' if count == 1 else 's'}",
        f"{entry['size_bytes']} bytes at {entry['position']}",
        f"epoch {entry['leader_epoch']}",
        f"appended {_time_text(entry['append_timestamp'])}",
    ]
    if entry["producer_id"] >= 0:
        parts.append(f"producer {entry['producer_id']} epoch {entry['producer_epoch']} sequence {entry['base_sequence']}")
    parts.extend(
        word for word, is_set in (("transactional", entry["is_transactional"]), ("control", entry["is_control"])) if is_set
    )
    parts.append(f"crc {entry['header_crc']} {entry['payload_crc']}")
    return ", ".join(parts) + (_control_text(entry["control"]) if entry["is_control"] else "")


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


def _time_text(timestamp_ms: int) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1_000, datetime.UTC)
    except (ValueError, OverflowError):
        return f"{timestamp_ms} ms"  # outside the calendar: a file may hold any number
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _has_records(entry: Entry) -> bool:
    return bool(entry["type"] == "batch" and not entry["is_control"])


def _records(entry: Entry) -> list[Any]:
    own = _own_records(entry)
    if own is not None:
        return own
    return [json.loads(line) for line in _printed(entry, json_printer({})).splitlines()]


def _record_lines(entry: Entry) -> bytes:
    own = _own_records(entry)
    if own is not None:
        return "".join(map(_own_line, own)).encode()
    return _printed(entry, format_printer("    offset %o, timestamp %T, key %k, value %s, headers %h\n", {}, null=b"null"))


def _own_records(entry: Entry) -> list[dict[str, Any]] | None:
    """The records of a batch of an internal log, or the problem of decoding them; None for other logs."""
    try:
        return records_in(entry["path"], entry["position"], entry["size_bytes"])
    except BrokerdError as error:
        return [{"problem": str(error)}]


def _own_line(record: Entry) -> str:
    if "problem" in record:
        return f"    PROBLEM: {record['problem']}\n"
    name_key = "group_id" if "group_id" in record else "transactional_id"
    known = ("offset", "timestamp", name_key, "principal", "event")
    offset, timestamp, name, principal, event = (record[key] for key in known)
    fields = _compact({key: value for key, value in record.items() if key not in known})
    owner = f"{name_key.replace('_', ' ')} {json.dumps(name)} of {json.dumps(principal)}, " if name else ""
    return f"    offset {offset}, {_time_text(timestamp)}, {owner}{event}: {fields}\n"


def _printed(entry: Entry, printer: Printer) -> bytes:
    """The records of a batch, read from its file again. If the batch cannot be decoded, one line with the problem instead."""
    with open(entry["path"], "rb") as file:
        data = pa.py_buffer(os.pread(file.fileno(), entry["size_bytes"], entry["position"]))
    tp = TopicIdPartition(bytes(16), 0)
    try:
        lines = []
        for batch in walk_batches(data):
            piece = BatchSlice(tp, batch, batch.header.base_offset, batch.header.next_offset)
            fetched = decode_slice(piece, max_uncompressed_bytes=ConsumerConfig().max_decompressed_bytes, check_crc=True)
            if fetched is not None:
                lines.append(bytes(memoryview(printer(fetched))))
        return b"".join(lines)
    except BrokerdError as error:
        return f"    PROBLEM: {error}\n".encode()
