"""Containerfile and compose.yaml agree with each other, with the settings' defaults and with the files of the repository."""

from __future__ import annotations

import re
import tomllib

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.config.load import load_broker_config, variable_of
from brokerd.config.settings import settings_of
from brokerd.errors import ConfigError
from tests.unit.project.pages import DOCS, ROOT

CONTAINERFILE = (ROOT / "Containerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()
SAMPLE = tomllib.loads((ROOT / "conf" / "brokerd.toml").read_text())
KNOWN = {variable_of(name) for name in settings_of(BrokerConfig)}


def image_variables() -> dict[str, str]:
    return dict(re.findall(r"(BROKERD_\w+)=(\S+)", re.findall(r"^ENV (.*)$", CONTAINERFILE, re.MULTILINE)[0]))


def compose_variables(text: str = COMPOSE) -> dict[str, str]:
    return dict(re.findall(r'(BROKERD_\w+): "?([^"\s,}]+)', text))


def service(name: str) -> str:
    """The text of a service in compose.yaml."""
    return COMPOSE.partition(f"\n  {name}:\n")[2].partition("\n\n")[0]


def test_variables_are_settings() -> None:
    assert set(image_variables()) | set(compose_variables()) <= KNOWN


def test_ports_are_the_default_and_the_one_of_the_guides() -> None:
    metrics_port = image_variables()["BROKERD_METRICS_PORT"]
    (exposed,) = re.findall(r"^EXPOSE (.*)$", CONTAINERFILE, re.MULTILINE)
    assert exposed.split() == [str(SAMPLE["port"]), metrics_port]
    assert f"http://127.0.0.1:{metrics_port}/health" in CONTAINERFILE
    assert set(re.findall(r"broker:(\d+)", CONTAINERFILE + COMPOSE)) == {str(SAMPLE["port"])}
    assert f"metrics.port = {metrics_port}" in (DOCS / "monitoring.md").read_text()


def test_a_recovery_may_take_as_long_everywhere() -> None:
    """The time limit of a start is the same in a container, on Kubernetes and under systemd."""
    minutes = int(re.findall(r"--start-period=(\d+)m ", CONTAINERFILE)[0])
    probe = [
        int(re.findall(rf"`{name}: (\d+)`", (DOCS / "containers.md").read_text())[0])
        for name in ("periodSeconds", "failureThreshold")
    ]
    assert probe[0] * probe[1] == minutes * 60
    assert f"TimeoutStartSec={minutes}min\n" in (ROOT / "conf" / "brokerd.service").read_text()


def test_data_lies_in_the_volume() -> None:
    directory = image_variables()["BROKERD_DATA_DIR"]
    assert f"VOLUME {directory}\n" in CONTAINERFILE
    assert f"data:{directory}" in COMPOSE
    assert f"--data-dir {directory}" in (ROOT / "conf" / "brokerd.service").read_text(), "the same place as with systemd"


def test_what_is_copied_is_there() -> None:
    sources = [words.split()[0] for words in re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE)]
    assert all((ROOT / source).exists() for source in sources)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert not set(sources) & set(ignored)
    assert (ROOT / "examples" / "batch.py").exists()
    assert "/opt/brokerd/examples/batch.py" in CONTAINERFILE


def test_stages_are_those_that_compose_builds() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", CONTAINERFILE, re.MULTILINE)
    assert set(re.findall(r"target: (\w+)", COMPOSE)) <= set(stages)
    assert len(set(re.findall(r"^FROM (\S+) AS", CONTAINERFILE, re.MULTILINE))) == 1, "all of one base"


def test_the_image_alone_asks_for_authentication_and_compose_waives_it() -> None:
    with pytest.raises(ConfigError, match="without authentication"):
        load_broker_config(path=None, environ=image_variables(), flags={})
    config = load_broker_config(path=None, environ=image_variables() | compose_variables(service("broker")), flags={})
    assert config.advertised_host == "broker"
    assert not config.cluster_name


def test_the_nodes_of_the_cluster_have_an_id_a_name_and_a_volume_each() -> None:
    shared = image_variables() | compose_variables(COMPOSE.partition("x-cluster: &cluster\n")[2].partition("\n\n")[0])
    for node_id in (1, 2, 3):
        text = service(f"node-{node_id}")
        config = load_broker_config(path=None, environ=shared | compose_variables(text), flags={})
        assert (config.node_id, config.advertised_host) == (node_id, f"node-{node_id}")
        assert (config.cluster_name, config.coordination_servers) == ("example", "etcd://etcd:2379")
        assert f"data-{node_id}:{config.data_dir}" in text
    assert "http://etcd:2379" in service("etcd")
