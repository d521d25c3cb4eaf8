"""Reads files that a setting names: certificates, keys, tokens, the auth file, the configuration. Parses TOML.

Only regular files of limited size are read. A pipe without a writer, an endless device or a huge file would hang or kill a start or
a reload; such a path raises ConfigError instead.
"""

from __future__ import annotations

import os
import stat
import tomllib
from typing import Any

from brokerd.errors import ConfigError

FILE_BYTES_MAX = 4 * 1_048_576
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_small_file(path: str, what: str) -> bytes:
    """The content of a regular file. Raises ConfigError naming `what` (such as `ssl.key.file`) and the path."""
    try:
        with open(path, "rb", opener=_opened) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"cannot read {what} {path}: it is {_kind(mode)}, but must be a regular file")
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {what} {path}: {reason}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"cannot read {what} {path}: it has more than {FILE_BYTES_MAX} bytes; is it the right file?")
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML file. Raises tomllib.TOMLDecodeError, also for a number or a nesting that Python refuses to read."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise tomllib.TOMLDecodeError("a number has thousands of digits") from None
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None


def _opened(path: str, flags: int) -> int:
    """Opens with O_NONBLOCK: without it, opening a pipe waits for a writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _kind(mode: int) -> str:
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "of an unknown kind")
