"""A standalone master with two workers, whose Python has everything but brokerd: it comes as a zip, with the job.

Slow: each of the five JVMs takes its seconds. Everything is on loopback addresses, with ports that are free.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from brokerd.client.blocking import BlockingClient
from tests.spark.conftest import NewTopic
from tests.support.daemon import DaemonProcess
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
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
    return os.environ["PLACE"] + brokerd.__file__


rows = spark.range(1000).repartition(4).selectExpr("string(id) AS key", "string(id) AS value")
to(rows.write.mode("append"), first).save()
stream = of(spark.readStream.option("startingOffsets", "earliest"), first).load().select("key", "value")
to(stream.writeStream.option("checkpointLocation", checkpoint), second).trigger(availableNow=True).start().awaitTermination()
read = of(spark.read, second).load()
print("rows", read.count(), read.select("value").distinct().count())
for found in spark.sparkContext.parallelize(range(8), 8).map(place).distinct().collect():
    print("place", found)
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with the packages of this one, except brokerd."""
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
    """brokerd as the wheel has it, in a zip."""
    path = tmp_path / "brokerd.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for folder, place in (("brokerd", "brokerd"), ("sink", "brokerd/sink"), ("datasource", "brokerd/datasource")):
            for source in (ROOT / folder).rglob("*.py"):
                inside = source.relative_to(ROOT / folder)
                if inside.parts[0] not in ("sink", "datasource", "pyspark_brokerd"):
                    archive.write(source, f"{place}/{inside}")
    return path


@contextlib.contextmanager
def jvm(log: Path, environment: dict[str, str], *arguments: str) -> Iterator[None]:
    """A daemon of Spark's, until it is no longer needed."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments], env=environment, stdout=output, stderr=output
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def awaited(log: Path, pattern: str) -> re.Match[str]:
    """The log of a daemon once it is ready."""
    wait_until(lambda: re.search(pattern, log.read_text()) is not None, what=f"{pattern} in {log}")
    match = re.search(pattern, log.read_text())
    assert match is not None
    return match


@pytest.fixture
def cluster(tmp_path: Path, bare_python: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The master's address, and the environment of a driver, of a master with workers on 127.0.0.2 and 127.0.0.3."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    environment = {**clean, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": str(bare_python), "SPARK_LOCAL_IP": "127.0.0.1"}
    with contextlib.ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        stack.enter_context(jvm(tmp_path / "master", environment, *master))
        at = awaited(tmp_path / "master", r"Starting Spark master at (spark://\S+)")
        for number in (2, 3):
            host = f"127.0.0.{number}"
            own = {**environment, "SPARK_LOCAL_IP": host, "PLACE": f"{host} "}
            worker = (
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
            )
            stack.enter_context(jvm(tmp_path / host, own, *worker, "--work-dir", str(tmp_path / f"work{number}"), at[1]))
        for host in ("127.0.0.2", "127.0.0.3"):
            awaited(tmp_path / host, "Successfully registered with master")
        yield at[1], environment


@pytest.mark.slow
def test_the_package_comes_with_the_job_to_workers_that_do_not_have_it(
    daemon: DaemonProcess,
    new_topic: NewTopic,
    client: BlockingClient,
    cluster: tuple[str, dict[str, str]],
    package: Path,
    tmp_path: Path,
) -> None:
    master, environment = cluster
    (tmp_path / "job.py").write_text(JOB)
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--py-files", str(package)]
    for setting in ("spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.executor.memory=512m", "spark.cores.max=2"):
        submit += ["--conf", setting]
    job = [str(tmp_path / "job.py"), daemon.address, new_topic(4), new_topic(2), str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [*submit, *job],
        env={**environment, "PYTHONPATH": str(package)},  # the driver's JVM plans reads in processes of its own
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 1000 1000" in done.stdout
    places = re.findall(r"^place (\S+) (\S+)$", done.stdout, re.MULTILINE)
    assert {host for host, _ in places} == {"127.0.0.2", "127.0.0.3"}
    assert all("brokerd.zip/brokerd/__init__.py" in path for _, path in places)
