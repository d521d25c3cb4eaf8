"""Generates `conf/brokerd.toml`, which `brokerd config --sample` prints: every setting of the broker with its description,
range and default.

    brokerd config --sample > conf/brokerd.toml

A test keeps the file equal to the output of this module, so its defaults are always right.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping

from brokerd.config.broker import BrokerConfig
from brokerd.config.load import variable_of
from brokerd.config.settings import INT64_MAX, Setting, Value, range_text, settings_of

_HEAD = """\
# Settings of the brokerd daemon: brokerd start --config brokerd.toml (`brokerd config --sample` prints this file)
#
# Every setting, with its default. Precedence: defaults < this file < environment < flags. The environment
# variable of a setting is its name in capitals with underscores, such as {variable};
# on the command line it is --set {name}=VALUE.
"""
_WIDTH = 118


def sample_toml() -> str:
    """The text of the annotated sample file."""
    known = settings_of(BrokerConfig)
    name = "log.segment.bytes"
    parts = [_HEAD.format(variable=variable_of(name), name=name)]
    parts.extend(_entry(spec, known) for spec in known.values())
    return "\n".join(parts)


def _entry(spec: Setting, known: Mapping[str, Setting]) -> str:
    allowed = range_text(spec)
    if spec.between is not None and spec.between[1] == INT64_MAX:
        allowed = f"at least {spec.between[0]}"
    comment = f"{spec.doc} ({allowed[:1].upper()}{allowed[1:]}.)" if allowed else spec.doc
    lines = textwrap.wrap(comment, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
    # A dotted TOML key cannot be both a value and the prefix of another key, so such a name is quoted.
    is_prefix = any(other.startswith(spec.name + ".") for other in known)
    key = f'"{spec.name}"' if is_prefix else spec.name
    return "\n".join([*lines, f"{key} = {_toml(spec.default)}"]) + "\n"


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 100_000:
        return f"{value:_}"
    return json.dumps(value)
