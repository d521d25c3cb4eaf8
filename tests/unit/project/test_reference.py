"""docs/reference/ matches the code, and the options listed there have the documented defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.config.spark_options import SINK_OPTIONS, SOURCE_OPTIONS, SparkOption
from brokerd.datasource.options import parse_source_options
from brokerd.sink.options import parse_sink_options

ROOT = Path(__file__).resolve().parents[3]
SERVERS = {"bootstrap.servers": "127.0.0.1:9192"}


def test_the_pages_are_what_the_code_says() -> None:
    checked = subprocess.run(
        [sys.executable, "docs/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("option", [one for one in SOURCE_OPTIONS if one.default], ids=lambda one: one.name)
def test_a_default_of_the_source_is_what_counts_without_the_option(option: SparkOption) -> None:
    given = {**SERVERS, "subscribe": "events"}
    assert parse_source_options({**given, option.name: option.default}, is_streaming=False) == parse_source_options(
        given, is_streaming=False
    )


@pytest.mark.parametrize("option", [one for one in SINK_OPTIONS if one.default], ids=lambda one: one.name)
def test_a_default_of_the_sink_is_what_counts_without_the_option(option: SparkOption) -> None:
    assert parse_sink_options({**SERVERS, option.name: option.default}) == parse_sink_options(SERVERS)
