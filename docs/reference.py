"""Writes the pages of docs/reference/ from the code: options, settings, metrics, errors. What they say stands in the code alone.

    python docs/reference.py           writes them
    python docs/reference.py --check   exits 1 if one of them is not what the code says, and names it

A page is a function without arguments that returns Markdown; a broker is started for a moment to ask it for its metrics.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from brokerd import errors
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import ClientConfig, ConsumerConfig, PlainConsumerConfig, ProducerConfig
from brokerd.config.kafka_names import PASSED_OVER, REFUSED, REFUSED_FAMILIES, REFUSED_VALUES
from brokerd.config.load import variable_of
from brokerd.config.settings import INT32_MAX, INT64_MAX, Setting, Value, from_mapping, settings_of
from brokerd.config.spark_options import SINK_OPTIONS, SOURCE_OPTIONS, SparkOption
from brokerd.config.topic import TopicConfig
from brokerd.errors import Action, ClientError, ErrorCode, action_of
from brokerd.server.cluster.node import ClusterFigures
from brokerd.server.daemon import Daemon
from brokerd.server.metrics.families import cluster_families, families, render, replication_families
from brokerd.server.replication.leading import ReplicationFigures

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"

_ACTIONS = {
    Action.FAIL: "fail: do not repeat it unchanged",
    Action.RETRY: "try again after a back-off",
    Action.REFRESH_AND_RETRY: "fetch new metadata, then try again",
    Action.PRODUCER_STATE: "the idempotent producer's own rules",
    Action.TRANSACTION_STATE: "the transaction's own rules",
}


def spark_options() -> str:
    """Options of the source and of the sink, and what becomes of Kafka's others."""
    return "\n".join(
        [
            "# Spark options",
            "",
            'Everything that `.option(...)` of `format("brokerd")` takes. Names are compared without case; every client setting',
            "may be written bare or with Kafka's prefix (`linger.ms`, `kafka.linger.ms`). How they differ from Spark's Kafka",
            "connector is in [Options beside Spark-Kafka's](../spark-options.md).",
            "",
            "## Source",
            "",
            *_option_table(SOURCE_OPTIONS),
            "",
            "Also every setting of a [reader](settings-clients.md#reader).",
            "",
            "## Sink",
            "",
            *_option_table(SINK_OPTIONS),
            "",
            "Also every setting of a [producer](settings-clients.md#producer); the sink's own default for `linger.ms` is 100.",
            "",
            "## Kafka's settings that have no effect",
            "",
            ", ".join(f"`{name}`" for name in sorted(PASSED_OVER)) + ".",
            "",
            "## Kafka's settings that are refused",
            "",
            *_table(("setting", "why, and what to do"), _refused()),
        ]
    )


def _option_table(options: Iterable[SparkOption]) -> list[str]:
    rows = ((f"`{one.name}`", f"`{one.default}`" if one.default else "", one.doc) for one in options)
    return _table(("option", "default", "meaning"), rows)


def _refused() -> list[tuple[str, str]]:
    rows = [(f"`{name}`", text) for name, text in REFUSED.items()]
    rows += [(f"`{family}*`, any other" if family == "ssl." else f"`{family}*`", text) for family, text in REFUSED_FAMILIES.items()]
    rows += [(f"`{name}={value}`", text) for (name, value), text in REFUSED_VALUES.items()]
    return rows


def broker_settings() -> str:
    """Settings of the daemon."""
    name = "log.segment.bytes"
    return "\n".join(
        [
            "# Settings of the broker",
            "",
            "The last one wins: defaults, the file of `brokerd start --config FILE`, the environment, `--set NAME=VALUE`.",
            f"A setting's variable is its name in capitals: `{variable_of(name)}` for `{name}`.",
            "`brokerd config --sample` prints a file with all of them.",
            "",
            *_setting_table(settings_of(BrokerConfig).values()),
        ]
    )


def client_settings() -> str:
    """Settings of clients, the producer's and the consumer's."""
    common, reader = settings_of(ClientConfig), settings_of(ConsumerConfig)
    return "\n".join(
        [
            "# Settings of clients",
            "",
            "In Spark they are options, bare or with the prefix `kafka.`; on the command line `-X NAME=VALUE` or a line of",
            "`--command-config FILE`; in Python the mapping that `Producer` or `Consumer` is given. Names and defaults",
            "are Kafka's unless the sentence says otherwise.",
            "",
            "## Every client",
            "",
            *_setting_table(common.values()),
            "",
            "## Producer",
            "",
            *_setting_table(spec for name, spec in settings_of(ProducerConfig).items() if name not in common),
            "",
            "## Reader",
            "",
            *_setting_table(spec for name, spec in reader.items() if name not in common),
            "",
            "## Consumer of plain Python",
            "",
            "Besides those of a reader.",
            "",
            *_setting_table(spec for name, spec in settings_of(PlainConsumerConfig).items() if name not in reader),
        ]
    )


def topic_settings() -> str:
    """Settings of topics."""
    return "\n".join(
        [
            "# Settings of topics",
            "",
            "`brokerd topics create NAME --config NAME=VALUE`, or `brokerd topics alter` at any time later. A topic stores what",
            "was set for it; the rest is the broker's (`log.segment.bytes` is the default of `segment.bytes`, and so on).",
            "",
            *_setting_table(settings_of(TopicConfig).values()),
        ]
    )


def _setting_table(settings: Iterable[Setting]) -> list[str]:
    rows = ((f"`{one.name}`", _value(one.default), _range(one), one.doc) for one in settings)
    return _table(("setting", "default", "allowed", "meaning"), rows)


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value}`" if value != "" else "empty"


def _range(spec: Setting) -> str:
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    if isinstance(spec.default, bool):
        return "`true`, `false`"
    if spec.between is None:
        return ""
    minimum, maximum = spec.between
    return f"{minimum} or more" if maximum in (INT32_MAX, INT64_MAX) else f"{minimum} to {maximum}"


def metrics() -> str:
    """The response of /metrics."""
    rows = []
    for family in text_string_to_metric_families(asyncio.run(_one_of_each()).decode()):
        if family.name.startswith("brokerd"):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            rows.append((f"`{family.name}{suffix}`", family.type, ", ".join(f"`{one}`" for one in labels), family.documentation))
    return "\n".join(
        [
            "# Metrics",
            "",
            "What `/metrics` says, at `metrics.port`; beside these the process's own (`process_cpu_seconds_total`,",
            "`process_resident_memory_bytes`, `process_open_fds` and their like). Counters begin at zero with each start.",
            "Which of them to watch: [Monitoring](../monitoring.md); and",
            "[their names in Kafka](../monitoring.md#metrics-by-kafkas-names).",
            "",
            *_table(("metric", "type", "labels", "meaning"), sorted(rows)),
        ]
    )


async def _one_of_each() -> bytes:
    """A running broker's /metrics, with one sample of each family that it has none of yet: a sample shows a family's labels."""
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(from_mapping(BrokerConfig, {"data.dir": f"{directory}/data", "port": 0}))
        await daemon.start()
        try:
            found, counters = await families(daemon.broker, stream_count=0), daemon.broker.counters
        finally:
            await daemon.stop()
    found += cluster_families(
        ClusterFigures(0, 0, is_controller=False, is_registered=False, calls=0, failed_calls=0, call_seconds=0)
    )
    found += replication_families(ReplicationFigures())
    for family in found:
        if isinstance(family, (CounterMetricFamily, GaugeMetricFamily)) and not family.samples:
            family.add_metric([""] * len(family._labelnames), 0)  # noqa: SLF001 - there is no public way
    for counter, label_count in ((counters.failed_produce, 1), (counters.failed_fetch, 1), (counters.request_errors, 2)):
        counter.labels(*[""] * label_count)
    return render(found, counters.registry, tempfile.gettempdir())


def error_page() -> str:
    """The table of errors, on the wire and in the client."""
    comments = _comments_of_codes()
    wire = []
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            made = errors.ERROR_CLASSES[code].__name__
            wire.append((str(int(code)), f"`{code.name}`", f"`{made}`", comments[code.name], _ACTIONS[action_of(code)]))
    own: list[type[ClientError]] = [ClientError, *_subclasses(ClientError)]
    return "\n".join(
        [
            "# Errors",
            "",
            "All of them are classes of `brokerd.errors`, below `BrokerdError`. What to do about those that people meet:",
            "[Troubleshooting](../troubleshooting.md).",
            "",
            "## From the broker",
            "",
            "The number says what a client does, so that an old client handles a new code. The project's clients do it by",
            "themselves; an application sees an error once there is no more to try. If an append failed, the error's `fate` says",
            "whether the records certainly are not in the log (`NOT_APPENDED`) or may be (`UNKNOWN`).",
            "",
            *_table(("code", "name", "class", "meaning", "what a client does"), wire),
            "",
            "## From the client",
            "",
            *_table(("class", "meaning"), ((f"`{one.__name__}`", _first_sentences(one)) for one in own)),
        ]
    )


def _comments_of_codes() -> dict[str, str]:
    """The comment of each code in error.proto, without the advice at the end, which the number holds."""
    text = (ROOT / "proto" / "brokerd" / "wire" / "v1" / "error.proto").read_text()
    found = re.findall(r"((?:  // .*\n)+)  ERROR_CODE_(\w+) = ", text)
    advice = r" (Fatal|Retry|Refresh and retry)\.$"
    return {name: re.sub(advice, "", " ".join(line.removeprefix("  // ") for line in lines.splitlines())) for lines, name in found}


def _subclasses(base: type[ClientError]) -> list[type[ClientError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, base) and cls is not base]


def _first_sentences(cls: type) -> str:
    return re.sub(r"\s+", " ", (cls.__doc__ or "").strip())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Markdown; a bar inside a cell is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


PAGES: dict[str, Callable[[], str]] = {
    "spark-options.md": spark_options,
    "settings-broker.md": broker_settings,
    "settings-clients.md": client_settings,
    "settings-topics.md": topic_settings,
    "metrics.md": metrics,
    "errors.md": error_page,
}


def fresh(name: str) -> str:
    """The text that a page must hold."""
    page, rest = PAGES[name]().split("\n", 1)
    return f"{page}\n\n<!-- Made from the code by `make reference`; do not edit. -->\n{rest}\n"


def stale() -> list[str]:
    """Pages that do not hold what the code says, are missing, or should be gone."""
    wrong = [name for name in PAGES if not (FOLDER / name).exists() or (FOLDER / name).read_text() != fresh(name)]
    return wrong + sorted(path.name for path in FOLDER.iterdir() if path.name not in PAGES)


def main() -> int:
    """Command line: write, or with --check compare only."""
    if "--check" in sys.argv[1:]:
        wrong = stale()
        for name in wrong:
            sys.stderr.write(f"docs/reference/{name} is not what the code says: run `make reference`\n")
        return 1 if wrong else 0
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(fresh(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
