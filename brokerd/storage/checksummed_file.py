"""Small files (documents), replaced atomically: a header line with kind, version, length and CRC32C, then the body.

    brokerd <kind> <version> <bytes of body> <crc32c of the body, seeded with that of "<kind> <version>">\\n<body>

A document is replaced by writing a temporary file, fdatasync, rename, and a sync of the directory, so an intact one always
exists. The caller defines the body.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c

from brokerd.errors import BrokerdError, DataDirectoryError
from brokerd.storage.files import Files, is_no_space, read_whole, write_whole
from brokerd.storage.spare_files import SpareFiles

_NAME = "brokerd"


class DocumentKind(NamedTuple):
    """A kind of document, and the version of its body that is written and read."""

    name: str
    version: int


class DocumentError(BrokerdError):
    """A document is damaged; the message says how. A missing one raises FileNotFoundError instead."""


class NotSyncedError(OSError):
    """A document was replaced, but its directory could not be synced: a power cut may bring the old one back."""


def encode_document(kind: DocumentKind, body: bytes) -> bytes:
    """The bytes of a document."""
    return f"{_NAME} {kind.name} {kind.version} {len(body)} {_crc(kind, body):08x}\n".encode() + body


def decode_document(data: bytes, kind: DocumentKind) -> bytes:
    """The body of a document. Raises DocumentError if it is damaged, DataDirectoryError if it is intact but of another version."""
    line, newline, body = data[:200].partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 5 or words[:2] != [_NAME, kind.name]:
        raise DocumentError(f"it does not begin as a {kind.name} does")
    body = data[len(line) + 1 :]
    try:
        found, length, crc = kind._replace(version=int(words[2])), int(words[3]), int(words[4], 16)
    except ValueError:
        raise DocumentError("its first line is malformed") from None
    if length != len(body) or crc != _crc(found, body) or data[: len(line) + 1] != encode_document(found, body)[: len(line) + 1]:
        raise DocumentError("its length or CRC does not match")
    if found != kind:
        raise DataDirectoryError(
            f"{kind.name} has format version {found.version}; this brokerd reads version {kind.version}: "
            "use the release that wrote it"
        )
    return body


def write_document(
    files: Files,
    path: str,
    kind: DocumentKind,
    body: bytes,
    *,
    sync_dir: bool = True,
    spares: SpareFiles | None = None,
    keeps_spares: bool = False,
) -> None:
    """Replaces the document at `path`, durably on return. Raises NotSyncedError if the new document is in place, but a power cut
    may bring the old one back; any other OSError if the old one is still in place.

    With `sync_dir=False` the caller syncs the directory itself; use it for files derived from the log. With `spares`, the write
    also succeeds on a full disk while spare files remain. Derived files and `keeps_spares` leave some spare files unused.
    """
    data = encode_document(kind, body)
    try:
        write_whole(files, path, data)
    except OSError as error:
        if spares is None or not is_no_space(error):
            raise
        spares.write_over(path, data, is_derived=keeps_spares or not sync_dir)
    if sync_dir:
        try:
            files.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            raise NotSyncedError(error.errno, error.strerror, path) from error
        if spares is not None:
            spares.note_document(len(data))


def read_document(files: Files, path: str, kind: DocumentKind) -> bytes:
    """The body of the document at `path`. Raises FileNotFoundError, OSError, DocumentError, DataDirectoryError."""
    with damaged_if_unreadable():
        data = read_whole(files, path)
    return decode_document(data, kind)


@contextlib.contextmanager
def damaged_if_unreadable() -> Iterator[None]:
    """What the disk cannot read (EIO) counts as damaged. Raises DocumentError for it."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DocumentError("the disk cannot read it") from error


def write_json(files: Files, path: str, kind: DocumentKind, value: dict[str, Any], *, spares: SpareFiles | None = None) -> None:
    """Replaces a document with a JSON body; see `write_document`."""
    body = json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
    write_document(files, path, kind, body, spares=spares)


def read_json(files: Files, path: str, kind: DocumentKind) -> dict[str, Any]:
    """The body of a JSON document; see `read_document`."""
    value: dict[str, Any] = json.loads(read_document(files, path, kind))
    return value


def _crc(kind: DocumentKind, body: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(f"{kind.name} {kind.version}".encode()), body)
    return crc
