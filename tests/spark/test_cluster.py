"""A standalone master with two workers, whose Python has every package but brokerd, which the job ships as a zip.

Slow: five JVMs take some seconds each.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.exactly_once.standalone import HOSTS
from brokerd.client.blocking import BlockingClient
from tests.spark.conftest import NewTopic
from tests.spark.standalone import SPARK_HOME, Cluster, standalone_cluster
from tests.support.daemon import DaemonProcess

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys
from pyspark.sql import SparkSession
from brokerd.datasource.source import BrokerdDataSource

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(BrokerdDataSource)
servers, first, second, checkpoint = sys.argv[1:]


def to(writer, topic):
    return writer.format("brokerd").option("bootstrap.servers", servers).option("topic", topic)


def of(reader, topic):
    return reader.format("brokerd").option("bootstrap.servers", servers).option("subscribe", topic)


def place(_):  # in a task
    import os, brokerd
    return [os.environ["SPARK_LOCAL_IP"] + " " + brokerd.__file__]


rows = spark.range(1000).repartition(4).selectExpr("string(id) AS key", "string(id) AS value")
to(rows.write.mode("append"), first).save()
stream = of(spark.readStream.option("startingOffsets", "earliest"), first).load().select("key", "value")
to(stream.writeStream.option("checkpointLocation", checkpoint), second).trigger(availableNow=True).start().awaitTermination()
read = of(spark.read, second).load()
print("rows", read.count(), read.select("value").distinct().count())
# The tasks of a barrier stage run at once, so one on each worker; it waits until both are there.
for found in spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(place).collect():
    print("place", found)
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with this one's packages, except brokerd."""
    home, packages = tmp_path / "bare", Path(sysconfig.get_paths()["purelib"])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    links = home / "links"
    links.mkdir()
    for entry in packages.iterdir():
        if "brokerd" not in entry.name and entry.suffix != ".pth":
            (links / entry.name).symlink_to(entry)
    (next((home / "lib").glob("python3.*")) / "site-packages" / "links.pth").write_text(f"{links}\n")
    return home / "bin" / "python"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """brokerd as a zip with the wheel's content."""
    path = tmp_path / "brokerd.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for folder, place in (("brokerd", "brokerd"), ("sink", "brokerd/sink"), ("datasource", "brokerd/datasource")):
            for source in (ROOT / folder).rglob("*.py"):
                inside = source.relative_to(ROOT / folder)
                if inside.parts[0] not in ("sink", "datasource"):
                    archive.write(source, f"{place}/{inside}")
    return path


@pytest.fixture
def cluster(tmp_path: Path, bare_python: Path) -> Iterator[Cluster]:
    """Workers without brokerd."""
    with standalone_cluster(tmp_path, bare_python) as made:
        yield made


@pytest.mark.slow
def test_the_package_comes_with_the_job_to_workers_that_do_not_have_it(
    daemon: DaemonProcess,
    new_topic: NewTopic,
    client: BlockingClient,
    cluster: Cluster,
    package: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, "--py-files", str(package)]
    for setting in ("spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.executor.memory=512m", "spark.cores.max=2"):
        submit += ["--conf", setting]
    job = [str(tmp_path / "job.py"), daemon.address, new_topic(4), new_topic(2), str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [*submit, *job],
        env={**cluster.environment, "PYTHONPATH": str(package)},  # the driver's JVM plans reads in separate processes
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 1000 1000" in done.stdout
    places = re.findall(r"^place (\S+) (\S+)$", done.stdout, re.MULTILINE)
    assert {host for host, _ in places} == set(HOSTS)
    assert all("brokerd.zip/brokerd/__init__.py" in path for _, path in places)
