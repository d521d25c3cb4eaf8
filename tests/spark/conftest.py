"""One Spark session and one broker per test process, shared by most Spark tests; each test has its own topics. Tests that need
another broker or driver say so."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.support.daemon import DaemonProcess
from tests.support.several_nodes import SeveralNodes

_ROOT = Path(__file__).resolve().parents[2]
NewTopic = Callable[..., str]

# These JVMs live for seconds; with the optimising compilers half of the processor time would go into compilation.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs Spark. Each test process has a session; a file's tests stay in one process."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
                item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] with the settings that brokerd ships; workers run this Python."""
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    shipped = (line.split(None, 1) for line in (_ROOT / "conf" / "spark-defaults.conf").read_text().splitlines())
    settings = {
        **{line[0]: line[1].strip() for line in shipped if line and not line[0].startswith("#")},
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # for a Python worker to start on a busy machine
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Asia/Tokyo",  # no result may depend on it
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.memory": "2g",
    }
    builder = SparkSession.builder.master("local[2]").appName("brokerd tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess | SeveralNodes]:
    """A broker in its own process; three nodes with BROKERD_TEST_NODES=3."""
    is_alone = os.environ.get("BROKERD_TEST_NODES") != "3"
    with DaemonProcess(tmp_path_factory.mktemp("broker") / "data") if is_alone else SeveralNodes() as process:
        yield process


@pytest.fixture(scope="session")
def client(daemon: DaemonProcess | SeveralNodes) -> Iterator[BlockingClient]:
    """A client of that broker."""
    with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as blocking:
        yield blocking


_numbers = count()


@pytest.fixture
def new_topic(client: BlockingClient) -> NewTopic:
    """Creates a topic and returns its name: `new_topic(partitions, **configs)`."""

    def create(partitions: int = 4, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        client.create_topic(name, partitions, configs)
        return name

    return create
