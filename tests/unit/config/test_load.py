"""Sources of settings and their precedence. An error names the setting, its origin and the valid values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.config.load import load_broker_config
from brokerd.config.topic import topic_config
from brokerd.errors import ConfigError, InvalidConfigError


def load(tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: str) -> BrokerConfig:
    path = tmp_path / "brokerd.toml"
    path.write_text(toml)
    given = {name.replace("_", "."): value for name, value in flags.items()}
    return load_broker_config(path=str(path), environ=environ or {}, flags=given)


def error_of(tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, environ, **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(tmp_path / "brokerd.toml"), "FILE")


def test_without_anything_the_defaults_hold() -> None:
    assert load_broker_config(path=None, environ={}, flags={}) == BrokerConfig()


def test_file_beats_default_environment_beats_file_flag_beats_environment(tmp_path: Path) -> None:
    toml = "port = 1\nnode.id = 1\nnum.partitions = 1\n"
    environ = {"BROKERD_NODE_ID": "2", "BROKERD_NUM_PARTITIONS": "2"}
    config = load(tmp_path, toml, environ, num_partitions="3")
    assert (config.host, config.port, config.node_id, config.num_partitions) == ("127.0.0.1", 1, 2, 3)


@pytest.mark.parametrize(
    "toml",
    [
        "log.segment.bytes = 8192",
        "[log]\nsegment.bytes = 8192",
        "[log.segment]\nbytes = 8192",
        "log = { segment = { bytes = 8192 } }",
        '"log.segment.bytes" = 8192',
        '[log]\n"segment.bytes" = "8192"',
    ],
)
def test_dotted_keys_tables_and_quoted_names_are_the_same_setting(tmp_path: Path, toml: str) -> None:
    assert load(tmp_path, toml).log_segment_bytes == 8_192


def test_a_setting_given_twice_in_the_file_is_refused(tmp_path: Path) -> None:
    toml = '"log.segment.bytes" = 8192\n[log]\nsegment.bytes = 16384\n'
    assert error_of(tmp_path, toml) == "log.segment.bytes is given twice (FILE)"


def test_an_empty_directory_name_is_not_the_current_directory(tmp_path: Path) -> None:
    assert error_of(tmp_path, data_dir="") == "data.dir is empty: name the directory of all data"


def test_types_are_read_from_text_and_from_toml(tmp_path: Path) -> None:
    assert load(tmp_path, "auto.create.topics.enable = true").auto_create_topics
    assert load(tmp_path, "", {"BROKERD_AUTO_CREATE_TOPICS_ENABLE": "True"}).auto_create_topics
    assert load(tmp_path, 'host = "::1"').host == "::1"


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("\nlog.segment.byte = 1", "unknown setting 'log.segment.byte' (FILE): did you mean 'log.segment.bytes'?"),
        (
            "port = 1\n[log]\n# why\nretention.mss = 1",
            "unknown setting 'log.retention.mss' (FILE): did you mean 'log.retention.ms'?",
        ),
        ("max.parked.partition = 9", "unknown setting 'max.parked.partition' (FILE): did you mean 'max.parked.partitions'?"),
        ("port = 70000", "port must be between 0 and 65535, not 70000 (FILE)"),
        ("[log.segment]\n\nbytes = 12", "log.segment.bytes must be between 4096 and 2147483647, not 12 (FILE)"),
        ('port = "many"', "port must be a whole number, not 'many' (FILE)"),
        ("port = 1.5", "port must be a whole number, not '1.5' (FILE)"),
        ("port = true", "port must be a whole number, not 'True' (FILE)"),
        ("auto.create.topics.enable = 1", "auto.create.topics.enable must be true or false, not '1' (FILE)"),
        ("port = [1, 2]", "port must be a single value, not a list (FILE)"),
        ("[port]", "port must be a single value, not a table (FILE)"),
        ('log.level = "loud"', "log.level must be one of debug, info, warning, error, not 'loud' (FILE)"),
        (
            "max.partitions = 5\nmax.partitions.per.topic = 5",
            'FILE, line 2: in TOML the name max.partitions needs quotes, since longer names begin with it: "max.partitions" = ...',
        ),
        (
            "max.partitions.per.topic = 5\nmax.partitions = 5",
            'FILE, line 2: in TOML the name max.partitions needs quotes, since longer names begin with it: "max.partitions" = ...',
        ),
        ("port = 1\nport = 2", "FILE, line 2: cannot overwrite a value"),
        ("port = 1\nhost =\n", "FILE, line 2: invalid value"),
        ("port = 1\nhost = 'x", 'FILE, line 2: expected "\'"'),
        ("= 3", "FILE, line 1: invalid statement"),
        (f"port = {'9' * 5_000}", "FILE: a number has thousands of digits"),
        (f"port = 0x{'f' * 5_000}", "port must be a whole number, not 'a number of thousands of digits' (FILE)"),
        (f"port = {'[' * 5_000}", "FILE: nested too deeply"),
        ("host = true", "host must be text, not of type bool (FILE)"),
        ("host = 2026-01-31", "host must be text, not of type date (FILE)"),
        ('data.dir = "a\\u0000b"', "data.dir must be text without NUL (FILE)"),
    ],
)
def test_an_error_in_the_file_names_setting_file_and_remedy(tmp_path: Path, toml: str, expected: str) -> None:
    assert error_of(tmp_path, toml) == expected


def test_a_file_that_is_not_text_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "brokerd.toml"
    path.write_bytes(b"port = 1\n\nhost = '\xff\xfe'\n")
    with pytest.raises(ConfigError, match="line 3: not UTF-8 text"):
        load_broker_config(path=str(path), environ={}, flags={})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read the configuration file {path}: "):
            load_broker_config(path=str(path), environ={}, flags={})


def test_an_error_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    expected = "port must be between 0 and 65535, not 99999 (environment variable BROKERD_PORT)"
    assert error_of(tmp_path, environ={"BROKERD_PORT": "99999"}) == expected


def test_an_error_in_a_flag_says_so(tmp_path: Path) -> None:
    assert error_of(tmp_path, port="x") == "port must be a whole number, not 'x' (given on the command line)"


@pytest.mark.parametrize("text", ["١٢٣", "1_000", "１２", "²", "+-1", "1 0", "0x10", "1e3", "", "inf"])
def test_whole_numbers_have_ascii_digits_alone(tmp_path: Path, text: str) -> None:
    assert error_of(tmp_path, port=text) == f"port must be a whole number, not '{text}' (given on the command line)"
    with pytest.raises(InvalidConfigError, match=r"retention\.ms must be a whole number"):
        topic_config({"retention.ms": text}, {})


def test_a_wrong_value_is_refused_even_where_a_later_one_wins(tmp_path: Path) -> None:
    assert "not -1 (FILE)" in error_of(tmp_path, "port = -1", port="1")


def test_settings_that_contradict_each_other_are_both_named(tmp_path: Path) -> None:
    text = error_of(tmp_path, "fetch.max.bytes = 33_554_432\nmessage.max.bytes = 33_554_432")
    assert "fetch.max.bytes (33554432)" in text
    assert "message.max.bytes (33554432)" in text
