"""Suggestions for unknown names: a typo gets the intended name, a foreign name gets no unrelated one."""

from __future__ import annotations

import pytest

from brokerd.config.suggestions import did_you_mean

CLIENT = ("auto.commit.interval.ms", "bootstrap.servers", "fetch.max.bytes", "linger.ms", "request.timeout.ms", "ssl.ca.file")
OPTIONS = ("--config", "--delete-config", "--help", "--partitions", "--from-beginning")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("request.timout.ms", "request.timeout.ms"),
        ("Request.Timeout.Ms", "request.timeout.ms"),
        ("request.timeout", "request.timeout.ms"),
        ("timeout.request.ms", "request.timeout.ms"),
        ("ssl.cafile", "ssl.ca.file"),
        ("lingerms", "linger.ms"),
        ("linger", "linger.ms"),
        ("bootstrap.server", "bootstrap.servers"),
    ],
)
def test_a_slip_gets_the_name_that_was_meant(name: str, meant: str) -> None:
    assert did_you_mean(name, CLIENT) == f"did you mean '{meant}'?"


@pytest.mark.parametrize("name", ["consumer.timeout.ms", "statistics.interval.ms", "session.timeout.ms", "receive.max.bytes"])
def test_words_in_common_make_no_two_settings_alike(name: str) -> None:
    assert did_you_mean(name, CLIENT) == f"choose from {', '.join(CLIENT)}"


def test_a_long_list_is_left_to_where_it_is_kept() -> None:
    many = [f"{letter}{letter}" for letter in "abcdefghijk"]
    assert did_you_mean("nosuch", many, listed="see there") == "see there"
    assert did_you_mean("nosuch", many[1:], listed="see there") == f"choose from {', '.join(many[1:])}"
    assert did_you_mean("nosuch", many, otherwise="ask", listed="see there") == "ask"


def test_dashes_make_no_two_options_alike() -> None:
    assert did_you_mean("--set", OPTIONS, otherwise="") == ""
    assert did_you_mean("--part", OPTIONS) == "did you mean '--partitions'?"
    assert did_you_mean("--from-begin", OPTIONS) == "did you mean '--from-beginning'?"


def test_letters_that_changed_places_are_a_slip_in_a_short_name_too() -> None:
    assert did_you_mean("zhs", ["bash", "zsh"]) == "did you mean 'zsh'?"


def test_nothing_is_near_where_nothing_is_known() -> None:
    assert did_you_mean("name", [], otherwise="") == ""
