"""Offsets added to a transaction are checked when they are added, not at the commit."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.ids import TopicPartition
from brokerd.producer.transaction import SentOffsets, named_offsets

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("group", "expected", "error", "match"),
    [
        ("", {T0: None}, ValueError, "group id must not be empty"),
        ("a\n", {T0: None}, ValueError, "group id 'a\\\\n' must have at most 249 characters that can be printed"),
        ("\ud800", {T0: None}, ValueError, "characters that can be printed"),
        ("g" * 250, {T0: None}, ValueError, "it has 250 characters"),
        ("g", [T0], TypeError, "expected must be a mapping of partitions to offsets"),
        ("g", {T0: "1"}, TypeError, "must be a whole number"),
        ("g", {}, ValueError, "expected lacks t-0"),
    ],
)
def test_groups_and_their_expected_offsets_are_checked(group: str, expected: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        named_offsets({T0: 1}, group, expected)


def test_what_is_no_reader_is_refused() -> None:
    reader: Any = 5
    with pytest.raises(TypeError, match="group must be the Consumer that has read the input, or the id of a group, not 5"):
        SentOffsets().add_read({T0: 1}, reader)
