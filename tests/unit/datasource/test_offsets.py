"""Offsets in a checkpoint: their exact text, since old checkpoints must stay readable, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.datasource.offsets import INITIAL, SourceOffset, nested, parse_source_offset
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

ID = bytes(range(16))
A0, A1, B10 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 10)


def test_text_of_version_1_is_fixed() -> None:
    offset = SourceOffset({B10: 7, A1: 2, A0: 5}, {"b": ID, "a": ID}, {A1: 0})
    assert json.dumps(offset.to_json()) == (
        '{"a": {"0": 5, "1": 2}, "b": {"10": 7}, "@brokerd": {"version": 1, "topicIds": '
        '{"a": "000102030405060708090a0b0c0d0e0f", "b": "000102030405060708090a0b0c0d0e0f"}, "starts": {"a": {"1": 0}}}}'
    )
    assert json.dumps(INITIAL.to_json()) == '{"@brokerd": {"version": 1, "initial": true}}'


@pytest.mark.parametrize(
    "offset",
    [
        INITIAL,
        SourceOffset({A0: 5}, {"a": ID}, source_id="7"),
        SourceOffset({}, {}),
        SourceOffset({A0: 5}, {"a": ID}),
        SourceOffset({A0: 5, A1: 0}, {"a": ID}, {A1: 0}),
        SourceOffset({A0: 5, A1: 0}, {"a": ID}, epochs={A0: 2**32 - 1}),
    ],
)
def test_what_is_stored_is_what_is_read(offset: SourceOffset) -> None:
    assert parse_source_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_equal_offsets_give_equal_text_whatever_their_order() -> None:
    assert json.dumps(SourceOffset({A0: 1, A1: 2}, {"a": ID}).to_json()) == json.dumps(
        SourceOffset({A1: 2, A0: 1}, {"a": ID}).to_json()
    )


def test_an_epoch_id_is_eight_hexadecimal_digits() -> None:
    stored = SourceOffset({A0: 5, A1: 0}, {"a": ID}, epochs={A0: 255}).to_json()
    assert stored["@brokerd"]["epochs"] == {"a": {"0": "000000ff"}}


@pytest.mark.parametrize("stored", [{}, {"a": {"0": 5}}, {"@brokerd": 1}, {"@brokerd": {}}])
def test_offsets_of_somebody_else_are_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not written by brokerd: give this query a checkpointLocation of its own"):
        parse_source_offset(stored)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="have version 2, this brokerd reads up to 1"):
        parse_source_offset({"@brokerd": {"version": 2}})


@pytest.mark.parametrize(
    "stored",
    [
        {"@brokerd": {"version": 1}},
        {"a": 5, "@brokerd": {"version": 1, "topicIds": {}}},
        {"a": {"x": 5}, "@brokerd": {"version": 1, "topicIds": {}}},
        {"@brokerd": {"version": 1, "topicIds": {"a": "zz"}}},
        {"a": {"0": 5}, "@brokerd": {"version": 1, "topicIds": {}, "epochs": {"a": {"0": "zz"}}}},
    ],
)
def test_damaged_offsets_are_refused_with_their_text(stored: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the checkpoint's offsets cannot be read"):
        parse_source_offset(stored)


@pytest.mark.parametrize(
    ("offsets", "meta"),
    [
        ({"a": {"0": 1.9}}, {}),
        ({"a": {"0": True}}, {}),
        ({"a": {"0": "1"}}, {}),
        ({"a": {"0": -7}}, {}),
        ({"a": {"0": 2**70}}, {}),
        ({"a": {"0": 3, "00": 1}}, {}),
        ({"b": {"0": 5}}, {}),
        ({"a": {"0": 5}}, {"topicIds": {"a": "00ff"}}),
        ({"a": {"0": 5}}, {"starts": {"a": {"0": None}}}),
        ({"a": {"0": 5}}, {"epochs": {"a": {"7": "00000001"}}}),
        ({"a": {"0": 5}}, {"epochs": {"a": {"0": "1ffffffff"}}}),
        ({"a": {"0": 5}}, {"epochs": {"a": {"0": 1}}}),
    ],
)
def test_offsets_that_brokerd_cannot_have_written_are_refused(offsets: dict[str, Any], meta: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the checkpoint's offsets cannot be read"):
        parse_source_offset({**offsets, "@brokerd": {"version": 1, "topicIds": {"a": ID.hex()}, **meta}})


def test_users_see_only_their_topics() -> None:
    assert nested({A1: 2, A0: 5}) == {"a": {"0": 5, "1": 2}}
