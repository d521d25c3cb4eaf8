"""A quiet Spark session with the settings of conf/spark-defaults.conf.

The JVM and the Python workers write to a file, since the JVM starts with warnings, and workers end with tracebacks (broken pipes)
whenever a query or Spark stops. Errors of a query still reach the driver.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

_DEFAULTS = Path(__file__).resolve().parents[2] / "conf" / "spark-defaults.conf"
_LOG = "spark.log"
_LINES_SHOWN = 40
_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex{short}
"""


def java_problem() -> str | None:
    """Why Spark cannot run in this environment, in one sentence, or None."""
    home = os.environ.get("JAVA_HOME")
    if Path(home, "bin", "java").exists() if home else shutil.which("java"):  # as Spark looks for it
        return None
    return "Java 17 or newer is needed to run Spark, and pip cannot install it: install a JDK, or set JAVA_HOME to one"


def spark_defaults(path: Path = _DEFAULTS) -> dict[str, str]:
    """The settings of a spark-defaults.conf."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def quiet_session(directory: Path, name: str, master: str = "local[2]") -> SparkSession:
    """A session with its scratch files in `directory`. Workers use this Python interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J)
    settings = {
        **spark_defaults(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "2g",
        "spark.driver.maxResultSize": "0",
        "spark.local.dir": str(directory / "spark-local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -Dderby.system.home={directory}",
    }
    conf = SparkConf().setMaster(master).setAppName(name).setAll(list(settings.items()))
    with _standard_error_to(directory / _LOG):
        with ThreadPoolExecutor(1) as other_thread:  # in the main thread, a new context replaces the handler of Ctrl-C
            other_thread.submit(SparkContext.getOrCreate, conf).result()
        return SparkSession.builder.getOrCreate()


def last_words(directory: Path) -> str:
    """The end of the standard error of the JVM and its Python workers, or ""."""
    log = directory / _LOG
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    if not lines:
        return ""
    return "\n".join(["", "Last output of Spark:", *lines[-_LINES_SHOWN:]]) + "\n"


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Redirects standard error to a file for children started in the block: no setting stops the JVM's warnings at start."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
