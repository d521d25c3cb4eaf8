"""Checks of request fields that several requests share. Each raises MalformedError starting with the field's name."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from brokerd.ids import TopicIdPartition
from brokerd.server.failures import malformed

TOPIC_ID_BYTES = 16
ID_MAX_CHARACTERS = 249
CONFIG_MAX_CHARACTERS = 255
# Limits for a stream's request before it is parsed: fields for each allowed partition, with a margin so that one too many is
# still parsed and named in the refusal, plus the few other fields.
FIELDS_PER_ENTRY = 2
OTHER_FIELDS = 64


def topic_id_partition(field: str, topic_id: bytes, partition: int) -> TopicIdPartition:
    """A partition in its wire form."""
    check_topic_id(f"{field}.topic_id", topic_id)
    if partition < 0:
        raise malformed(f"{field}.partition", f"is {partition}, but must not be negative")
    return TopicIdPartition(topic_id, partition)


def check_topic_id(field: str, topic_id: bytes) -> None:
    """Checks that a topic id has 16 bytes."""
    if len(topic_id) != TOPIC_ID_BYTES:
        raise malformed(field, f"has {len(topic_id)} bytes, but must have {TOPIC_ID_BYTES}")


def check_count(field: str, values: Sized, limit: int, setting: str = "") -> None:
    """Checks that a repeated field has at most `limit` entries."""
    if len(values) > limit:
        name = f" ({setting})" if setting else ""
        raise malformed(field, f"has {len(values)} entries, more than the {limit} allowed{name}")


def check_not_negative(field: str, value: int) -> None:
    """Checks that a number is not negative."""
    if value < 0:
        raise malformed(field, f"is {value}, but must not be negative")


def check_id(field: str, text: str) -> None:
    """Checks an id that clients choose: 1 to 249 characters that can be printed."""
    if not text:
        raise malformed(field, "must not be empty")
    check_text(field, text)


def check_text(field: str, text: str) -> None:
    """Checks that a text is short and can be printed."""
    if len(text) > ID_MAX_CHARACTERS:
        raise malformed(field, f"has {len(text)} characters, at most {ID_MAX_CHARACTERS} are allowed")
    if not text.isprintable():
        raise malformed(field, f"is {text!a}, but must not have control characters")


def check_config_texts(field: str, texts: Iterable[str]) -> None:
    """Checks that names and values of settings are short, so that errors can include them."""
    for text in texts:
        if len(text) > CONFIG_MAX_CHARACTERS:
            raise malformed(field, f"a name or a value has {len(text)} characters, at most {CONFIG_MAX_CHARACTERS} are allowed")
