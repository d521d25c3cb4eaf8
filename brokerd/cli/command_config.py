"""The file of --command-config: client settings as Kafka's tools take them, one NAME=VALUE per line; # starts a comment.

Names are not interpreted here. No error includes a value: it may be a secret.
"""

from __future__ import annotations

from brokerd.errors import ConfigError


def read_command_config(path: str) -> dict[str, str]:
    """Settings by name. Raises ConfigError with file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read --command-config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--command-config {path} is not UTF-8 text") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--command-config {path}, line {number}: not of the form NAME=VALUE")
        if name in found:
            raise ConfigError(f"--command-config {path}, line {number}: {name} is given twice")
        found[name] = value.strip()
    return found
