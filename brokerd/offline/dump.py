"""Describes the files of a data directory as dicts. Read-only; a broker may be running.

Covers every format that brokerd writes. doctor.py checks the contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from brokerd.datadir import checkpoint, log_time, node_state, topic_store
from brokerd.datadir.node_state import NODE_EPOCH_KIND, read_node_epoch
from brokerd.errors import BrokerdError, CorruptMessageError, DataDirectoryError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.offline.coordinator_log import fields_of
from brokerd.partition import derived_files
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.record.batch import RecordBatch
from brokerd.record.control import decode_control
from brokerd.record.header import BatchHeader, crc_seed, decode_header
from brokerd.storage import holes, names, segment
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_document, read_json
from brokerd.storage.files import File, RealFiles
from brokerd.storage.segment import decode_summary
from brokerd.storage.segment_walk import SegmentWalk

Entry = dict[str, Any]
DecodeRecords = Callable[[TopicIdPartition, RecordBatch], list[Entry]]


def describe_path(path: str, records: DecodeRecords | None = None) -> Iterator[Entry]:
    """Describes a file, or all files of a partition or data directory, one dict at a time; each has "type" and "path". With
    `records`, batches of data have "records": the result of that function.

    A file that cannot be read or decoded yields a dict of type "problem", and so does a partition's directory that cannot be read;
    other directories, such as lost+found, are left out. Raises DataDirectoryError if the path does not exist or is not a file of
    brokerd's.
    """
    if os.path.isdir(path):
        with closing(RealFiles(path, must_exist=True)) as files:
            try:
                entries = files.listdir()
            except OSError as error:
                raise DataDirectoryError(f"the directory {path} cannot be read: {error.strerror}") from None
        for name in entries:
            below = os.path.join(path, name)
            if names.parse_partition_directory(name) is not None or _describer(name) is not None:
                try:
                    yield from describe_path(below, records)
                except DataDirectoryError as error:
                    if os.path.lexists(below):  # otherwise a running broker has removed it meanwhile
                        yield {"type": "problem", "path": below, "problem": str(error)}
        return
    parent, name = os.path.split(os.path.abspath(path))
    describer = _describer(name)
    if describer is None:
        if not os.path.lexists(path):
            raise DataDirectoryError(f"there is no file {path}")
        raise DataDirectoryError(f"{path} is not a file of a brokerd data directory: its name is unknown")
    tp = names.parse_partition_directory(os.path.basename(parent))
    with closing(RealFiles(parent, must_exist=True)) as files:
        try:
            for entry in describer(files, name, tp):
                if records is not None and tp is not None and entry["type"] == "batch" and not entry["is_control"]:
                    entry["records"] = records(tp, _batch_at(files, name, entry["position"], entry["size_bytes"]))
                yield {"type": entry.pop("type"), "path": path, **entry}
        except FileNotFoundError:
            raise DataDirectoryError(f"there is no file {path}") from None
        except (BrokerdError, OSError) as error:
            yield {"type": "problem", "path": path, "problem": str(error)}


Describer = Callable[[RealFiles, str, TopicIdPartition | None], Iterable[Entry]]


def _describer(name: str) -> Describer | None:
    parsed = names.parse_offset_file(name)
    return _BY_SUFFIX.get(parsed[1]) if parsed is not None else _BY_NAME.get(name)


def _batch_at(files: RealFiles, name: str, position: int, size: int) -> RecordBatch:
    with closing(files.open(name)) as file:
        data = bytes(file.pread(size, position))
    return RecordBatch(decode_header(data), pa.py_buffer(data))


def _describe_segment(files: RealFiles, name: str, tp: TopicIdPartition | None) -> Iterator[Entry]:
    if tp is None:
        raise DocumentError("a segment can only be read in its partition's directory: the directory's name is part of the CRC")
    parsed = names.parse_offset_file(name)
    assert parsed is not None
    with closing(files.open(name)) as file:
        size = file.size()
        yield {"type": "segment", "base_offset": parsed[0], "size_bytes": size, "partition": str(tp)}
        yield from _describe_batches(file, size, parsed[0], crc_seed(tp))


def _describe_batches(file: File, size: int, base_offset: int, seed: int) -> Iterator[Entry]:
    walk = SegmentWalk(file, seed, base_offset=base_offset, end=size, payload_from=0)
    while True:
        for header in walk.scan:
            control = {"control": _describe_control(file, walk.scan.batch_position, header)} if header.is_control else {}
            yield {"type": "batch", "position": walk.scan.batch_position, **describe_header(header), **control}
        if walk.scan.problem is None:
            return
        lost = walk.go_past()
        if lost.resume_position is None and file.size() > size:
            return  # a running broker was writing the last batch
        yield {"type": "problem", "position": lost.position, "offset": lost.first_offset, "problem": lost.problem}
        if lost.resume_position is None:
            return


def describe_header(header: BatchHeader) -> Entry:
    """The fields of a batch header, and values derived from them."""
    hexadecimal = {name: f"{getattr(header, name):08x}" for name in ("leader_epoch_id", "header_crc", "payload_crc")}
    derived = ("last_offset", "is_transactional", "is_control", "payload_kind")
    fields = header._asdict() | {name: getattr(header, name) for name in derived} | {"size_bytes": header.size} | hexadecimal
    del fields["mark"]
    return fields


def _describe_control(file: File, position: int, header: BatchHeader) -> Entry:
    """The record of a control batch, or why it cannot be decoded."""
    try:
        record = decode_control(RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position)))))
    except (CorruptMessageError, UnsupportedVersionError) as error:
        return {"problem": error.message}
    return fields_of(record)


def _describe_index(files: RealFiles, name: str, tp: TopicIdPartition | None) -> Iterator[Entry]:
    body = read_document(files, name, segment.INDEX_KIND)
    summary, count = decode_summary(body)
    entry: Entry = {"type": segment.INDEX_KIND.name, **summary._asdict(), "entry_count": count}
    entry["belongs_here"] = tp is None or summary.seed == crc_seed(tp)
    yield entry


def _describe_snapshot(files: RealFiles, name: str, tp: TopicIdPartition | None) -> Iterator[Entry]:
    body = read_document(files, name, derived_files.SNAPSHOT_KIND)
    snapshot = derived_files.decode_snapshot(body)
    producers = [
        {
            "producer_id": producer_id,
            "epoch": entry.epoch,
            "has_wrapped": entry.has_wrapped,
            "txn_first_offset": entry.txn_first_offset,
            "batches": [batch._asdict() for batch in entry.batches],
        }
        for producer_id, entry in snapshot.producers.items()
    ]
    yield {
        "type": derived_files.SNAPSHOT_KIND.name,
        "offset": snapshot.offset,
        "epochs": _epochs(snapshot.epochs),
        "producers": producers,
        "forgotten": snapshot.forgotten,
        "aborted": [entry._asdict() for entry in snapshot.aborted],
        "belongs_here": tp is None or snapshot.seed == crc_seed(tp),
    }


def _epochs(entries: Iterable[EpochEntry]) -> list[dict[str, Any]]:
    return [{**entry._asdict(), "id": f"{entry.id:08x}"} for entry in entries]


def _describe_epochs(files: RealFiles, name: str, _tp: TopicIdPartition | None) -> Iterator[Entry]:
    body = read_document(files, name, derived_files.EPOCHS_KIND)
    entries = derived_files.decode_epochs_body(body)
    if entries is None:
        raise DocumentError("its entries are malformed")
    yield {"type": derived_files.EPOCHS_KIND.name, "epochs": _epochs(entries)}


def _describe_checkpoint(files: RealFiles, name: str, _tp: TopicIdPartition | None) -> Iterator[Entry]:
    body = read_document(files, name, checkpoint.CHECKPOINT_KIND)
    node_epoch, entries = checkpoint.decode_checkpoint(body)
    partitions = {str(tp): entry._asdict() for tp, entry in entries.items()}
    yield {"type": checkpoint.CHECKPOINT_KIND.name, "node_epoch": node_epoch, "partitions": partitions}


def _describe_node_epoch(files: RealFiles, _name: str, _tp: TopicIdPartition | None) -> Iterator[Entry]:
    yield {"type": NODE_EPOCH_KIND.name, "node_epoch": read_node_epoch(files)}


def _json_describer(kind: DocumentKind) -> Describer:
    def describe(files: RealFiles, name: str, _tp: TopicIdPartition | None) -> Iterator[Entry]:
        yield {"type": kind.name, **read_json(files, name, kind)}

    return describe


_BY_SUFFIX: dict[str, Describer] = {
    names.LOG_SUFFIX: _describe_segment,
    names.INDEX_SUFFIX: _describe_index,
    names.SNAPSHOT_SUFFIX: _describe_snapshot,
}
_BY_NAME: dict[str, Describer] = {
    names.LEADER_EPOCHS: _describe_epochs,
    names.HOLES: _json_describer(holes.HOLES_KIND),
    names.CHECKPOINT: _describe_checkpoint,
    names.META: _json_describer(node_state.META_KIND),
    names.CLOCK: _json_describer(log_time.CLOCK_KIND),
    names.DECIDED_MEMBERS: _json_describer(node_state.DECIDED_KIND),
    names.NODE_EPOCH: _describe_node_epoch,
    names.CLEAN_SHUTDOWN: _json_describer(node_state.CLEAN_KIND),
    names.TOPICS: _json_describer(topic_store.TOPICS_KIND),
}
