"""conf/brokerd.toml matches the settings in the code."""

from __future__ import annotations

from pathlib import Path

from brokerd.config.broker import BrokerConfig
from brokerd.config.load import load_broker_config
from brokerd.config.sample import sample_toml
from brokerd.config.settings import settings_of

SAMPLE = Path(__file__).parents[3] / "conf" / "brokerd.toml"


def test_the_sample_is_what_the_settings_make() -> None:
    assert SAMPLE.read_text() == sample_toml(), "regenerate it: brokerd config --sample > conf/brokerd.toml"


def test_the_sample_loads_and_equals_the_defaults() -> None:
    assert load_broker_config(path=str(SAMPLE), environ={}, flags={}) == BrokerConfig()


def test_every_setting_is_in_the_sample_with_its_sentence() -> None:
    text = " ".join(SAMPLE.read_text().replace("\n#", "\n").split())
    for name, spec in settings_of(BrokerConfig).items():
        assert name in text
        assert spec.doc in text
