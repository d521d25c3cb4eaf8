"""docs/spark-options.md documents every option that the code accepts, ignores or refuses."""

from __future__ import annotations

import re
from pathlib import Path

from brokerd.config.client import ConsumerConfig
from brokerd.config.kafka_names import PASSED_OVER, REFUSED, REFUSED_FAMILIES, REFUSED_VALUES
from brokerd.config.settings import settings_of
from brokerd.config.spark_options import SINK, SOURCE

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark-options.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def first_cells(text: str) -> set[str]:
    """Names in the first column of the tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_option_of_the_source_has_its_row() -> None:
    rows = first_cells(section("Reading"))
    assert set(SOURCE.own) <= rows
    assert rows <= {*SOURCE.own, *SOURCE.settings}


def test_every_setting_of_a_reader_that_kafka_does_not_have_has_its_row() -> None:
    ours = {name for name, setting in settings_of(ConsumerConfig).items() if "(not in Kafka)" in setting.doc}
    assert {"skip.corrupt.batches", "max.decompressed.bytes"} <= ours <= first_cells(section("Reading"))


def test_every_option_of_the_sink_has_its_row() -> None:
    assert set(SINK.own) <= first_cells(section("Writing"))


def test_every_setting_that_is_passed_over_is_named_and_no_other() -> None:
    text = section("Settings of Kafka's clients that do not exist here").partition("Refused,")[0]
    assert set(re.findall(r"`([^`]+)`", text)) == PASSED_OVER


def test_every_setting_that_is_refused_has_its_row() -> None:
    text = section("Settings of Kafka's clients that do not exist here").partition("Refused,")[2]
    named = {name.lower() for name in re.findall(r"`([^`]+)`", text)}
    expected = {*REFUSED, *(f"{family}*" for family in REFUSED_FAMILIES), *(f"{name}={value}" for name, value in REFUSED_VALUES)}
    assert expected - named == set()
