"""Checksummed files, which are replaced atomically."""

from __future__ import annotations

import errno

import pytest

from brokerd.errors import DataDirectoryError
from brokerd.storage.checksummed_file import (
    DocumentError,
    DocumentKind,
    NotSyncedError,
    decode_document,
    encode_document,
    read_document,
    read_json,
    write_document,
    write_json,
)
from tests.support.files import MemoryFiles, failing

CHECKPOINT, KIND, TOPICS = (DocumentKind(name, 1) for name in ("checkpoint", "kind", "topics"))


def test_a_document_begins_with_a_line_for_people() -> None:
    assert encode_document(CHECKPOINT, b"body").startswith(b"brokerd checkpoint 1 4 ")
    assert decode_document(encode_document(CHECKPOINT, b"body"), CHECKPOINT) == b"body"
    assert decode_document(encode_document(CHECKPOINT, b""), CHECKPOINT) == b""


def test_every_flipped_bit_and_every_cut_is_seen() -> None:
    data = encode_document(TOPICS, b"some body")
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DocumentError):
            decode_document(bytes(flipped), TOPICS)
    for size in range(len(data)):
        with pytest.raises(DocumentError):
            decode_document(data[:size], TOPICS)


def test_a_document_that_the_disk_cannot_read_is_damaged(files: MemoryFiles) -> None:
    write_document(files, "f", KIND, b"body")
    files.hook = failing("pread", path="f")
    with pytest.raises(DocumentError, match="the disk cannot read it"):
        read_document(files, "f", KIND)
    files.hook = failing("open", path="f", code=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        read_document(files, "f", KIND)


def test_another_version_is_refused_with_advice_and_another_kind_is_damage() -> None:
    with pytest.raises(DataDirectoryError, match="format version 2; this brokerd reads version 1"):
        decode_document(encode_document(TOPICS._replace(version=2), b""), TOPICS)
    with pytest.raises(DocumentError):
        decode_document(encode_document(TOPICS, b""), CHECKPOINT)


@pytest.mark.parametrize("operation", ["create", "pwritev", "fdatasync", "rename"])
def test_a_failed_replacement_leaves_the_old_one(files: MemoryFiles, operation: str) -> None:
    write_document(files, "f", KIND, b"old")
    files.hook = failing(operation, code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_document(files, "f", KIND, b"new")
    files.hook = None
    assert read_document(files, "f", KIND) == b"old"
    write_json(files, "f", KIND, {"a": [1]})
    assert read_json(files, "f", KIND) == {"a": [1]}
    assert files.listdir() == ["f"]


def test_a_replacement_that_a_power_cut_may_undo_is_told_apart(files: MemoryFiles) -> None:
    write_document(files, "f", KIND, b"old")
    files.hook = failing("sync_dir")
    with pytest.raises(NotSyncedError, match="Input/output error"):
        write_document(files, "f", KIND, b"new")
    assert read_document(files, "f", KIND) == b"new"
