"""Small files that are replaced whole: one line that says kind, version, length and CRC32C, then the body.

    brokerd <kind> <version> <bytes of body> <crc32c of the body, begun with that of kind and version>\\n<body>

They are replaced by: temporary file, fdatasync, rename, sync of the directory; so there is always a whole one. What the
bodies mean is not known here.
"""

from __future__ import annotations

import json
from typing import Any

import google_crc32c

from brokerd.errors import BrokerdError, DataDirectoryError
from brokerd.storage.files import Files, is_no_space, read_whole, write_whole
from brokerd.storage.spare_files import SpareFiles

_NAME = "brokerd"


class DocumentError(BrokerdError):
    """A document is damaged; the text says how. One that is missing is FileNotFoundError instead."""


class NotSyncedError(OSError):
    """A document is replaced, but its directory could not be synced: after a power cut the old one may be back."""


def encode_document(kind: str, version: int, body: bytes) -> bytes:
    """The bytes of a document."""
    return f"{_NAME} {kind} {version} {len(body)} {_crc(kind, version, body):08x}\n".encode() + body


def decode_document(data: bytes, kind: str, version: int) -> bytes:
    """The body. Raises DocumentError if damaged, DataDirectoryError if whole but of another version."""
    line, newline, body = data[:200].partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 5 or words[:2] != [_NAME, kind]:
        raise DocumentError(f"it does not begin as a {kind} does")
    body = data[len(line) + 1 :]
    try:
        found, length, crc = int(words[2]), int(words[3]), int(words[4], 16)
    except ValueError:
        raise DocumentError("its first line is malformed") from None
    if (
        length != len(body)
        or crc != _crc(kind, found, body)
        or data[: len(line) + 1] != encode_document(kind, found, body)[: len(line) + 1]
    ):
        raise DocumentError("its length or CRC does not match")
    if found != version:
        raise DataDirectoryError(
            f"{kind} has format version {found}; this brokerd reads version {version}: use the release that wrote it"
        )
    return body


def write_document(
    files: Files, path: str, kind: str, version: int, body: bytes, *, sync_dir: bool = True, spares: SpareFiles | None = None
) -> None:
    """Replaces the document at `path`, durably on return. Raises NotSyncedError: then the new one is there, and which of the two
    a power cut leaves is unknown; any other OSError: then the old one is still there.

    With `sync_dir=False` the caller syncs the directory itself; use it for files derived from the log. With `spares` a full
    disk takes it all the same.
    """
    data = encode_document(kind, version, body)
    try:
        write_whole(files, path, data)
    except OSError as error:
        if spares is None or not is_no_space(error):
            raise
        spares.write_over(path, data, is_derived=not sync_dir)
    if sync_dir:
        try:
            files.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            raise NotSyncedError(error.errno, error.strerror, path) from error
        if spares is not None:
            spares.note_document(len(data))


def read_document(files: Files, path: str, kind: str, version: int) -> bytes:
    """The body of the document at `path`. Raises FileNotFoundError, OSError, DocumentError, DataDirectoryError."""
    return decode_document(read_whole(files, path), kind, version)


def write_json(
    files: Files, path: str, kind: str, version: int, value: dict[str, Any], *, spares: SpareFiles | None = None
) -> None:
    """A document whose body is JSON; see write_document."""
    body = json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
    write_document(files, path, kind, version, body, spares=spares)


def read_json(files: Files, path: str, kind: str, version: int) -> dict[str, Any]:
    """See write_json and read_document."""
    value: dict[str, Any] = json.loads(read_document(files, path, kind, version))
    return value


def _crc(kind: str, version: int, body: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(f"{kind} {version}".encode()), body)
    return crc
