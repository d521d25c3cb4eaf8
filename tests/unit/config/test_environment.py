"""Goal: environment variables set settings, a mistyped variable is refused, and unrelated variables have no effect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.config.load import ignored_variables, load_broker_config, variable_of
from brokerd.config.settings import settings_of
from brokerd.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
# Variables that Kubernetes sets in a pod, as documented, for services called brokerd and brokerd-metrics.
SERVICES = {
    "BROKERD_SERVICE_HOST": "10.0.0.7",
    "BROKERD_SERVICE_PORT": "9192",
    "BROKERD_SERVICE_PORT_GRPC": "9192",
    "BROKERD_PORT": "tcp://10.0.0.7:9192",
    "BROKERD_PORT_9192_TCP": "tcp://10.0.0.7:9192",
    "BROKERD_PORT_9192_TCP_PROTO": "tcp",
    "BROKERD_PORT_9192_TCP_PORT": "9192",
    "BROKERD_PORT_9192_TCP_ADDR": "10.0.0.7",
    "BROKERD_METRICS_SERVICE_HOST": "10.0.0.8",
    "BROKERD_METRICS_SERVICE_PORT": "9193",
    "BROKERD_METRICS_PORT": "tcp://[fd00::8]:9193",
    "BROKERD_METRICS_PORT_9193_TCP_ADDR": "fd00::8",
}


def test_variables_of_kubernetes_services_set_nothing_and_stop_no_start() -> None:
    assert load_broker_config(path=None, environ=SERVICES, flags={}) == BrokerConfig()
    first, second = ignored_variables(SERVICES)
    assert first.startswith("environment variable BROKERD_METRICS_PORT is ignored: it holds the address of a Kubernetes service")
    assert second.startswith("environment variable BROKERD_PORT is ignored: it holds the address of a Kubernetes service")
    assert "port can be set in the file or with an option" in second


def test_every_setting_of_the_same_name_still_counts() -> None:
    config = load_broker_config(path=None, environ={**SERVICES, "BROKERD_PORT": "1", "BROKERD_METRICS_PORT": "2"}, flags={})
    assert (config.port, config.metrics_port) == (1, 2)


def test_no_setting_is_taken_for_a_services() -> None:
    environ = {variable_of(name): str(spec.default) for name, spec in settings_of(BrokerConfig).items()}
    assert load_broker_config(path=None, environ=environ, flags={}) == BrokerConfig()
    assert ignored_variables(environ) == []


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("BROKERD_PROT", "BROKERD_PORT"),
        ("BROKERD_LOG_SEGMENT_BYTE", "BROKERD_LOG_SEGMENT_BYTES"),
        ("BROKERD_DATADIR", "BROKERD_DATA_DIR"),
        ("BROKERD_HOSTS", "BROKERD_HOST"),
        ("BROKERD_port", "BROKERD_PORT"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_right_one(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown environment variable {variable}: did you mean '{meant}'\\?$"):
        load_broker_config(path=None, environ={variable: "1"}, flags={})


def test_what_is_like_no_setting_is_said_and_not_refused() -> None:
    environ = {"BROKERD_VERSION": "1.2", "BROKERD_IMAGE": "secret", "PATH": "/bin", "BROKERD_BOOTSTRAP_SERVER": "x:1"}
    assert load_broker_config(path=None, environ=environ, flags={}) == BrokerConfig()
    assert ignored_variables(environ) == [
        "environment variable BROKERD_IMAGE is ignored: it is not a setting of the broker",
        "environment variable BROKERD_VERSION is ignored: it is not a setting of the broker",
    ]


def test_variables_of_the_projects_tests_are_silent_and_no_others_of_that_look() -> None:
    """The broker does not read the tests' variables, so they need no warning. A similar name that no test reads is a mistake."""
    names = variables_of_tests()
    assert "BROKERD_TEST_SCALE" in names
    assert not any(path.is_relative_to(ROOT / "brokerd") for paths in names.values() for path in paths), "the product goes by one"
    assert ignored_variables(dict.fromkeys(names, "1")) == []
    assert ignored_variables({"BROKERD_TEST_MODE": "1"}) == [
        "environment variable BROKERD_TEST_MODE is ignored: it is not a setting of the broker"
    ]


def variables_of_tests() -> dict[str, set[Path]]:
    """The BROKERD_TEST_ variables, each with the files that read it, in the tests or the product."""
    own = re.compile(r"environ(?:\.get\(|\[)\"(BROKERD_TEST_\w+)\"")
    found: dict[str, set[Path]] = {}
    for folder in ("brokerd", "sink", "datasource", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in own.findall(path.read_text()):
                found.setdefault(name, set()).add(path)
    return found


def test_the_variable_of_a_setting() -> None:
    assert variable_of("log.segment.bytes") == "BROKERD_LOG_SEGMENT_BYTES"
