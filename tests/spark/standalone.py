"""A standalone Spark cluster for tests, started as in the benchmarks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark

from benchmarks.exactly_once.standalone import standalone

SPARK_HOME = Path(pyspark.__file__).parent


class Cluster(NamedTuple):
    """The master's address, and the environment for a driver."""

    master: str
    environment: Mapping[str, str]


@contextlib.contextmanager
def standalone_cluster(directory: Path, python: Path, **environment: str) -> Iterator[Cluster]:
    """Workers of one core each, on two hosts, that run `python`, with `environment` added to theirs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    common = {**clean, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    with standalone(SPARK_HOME, directory, common) as address:
        yield Cluster(address, common)
