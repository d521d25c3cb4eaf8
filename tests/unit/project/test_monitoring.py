"""The dashboard and the alerts use only existing metrics and labels, and the guide explains each alert.

The existing metrics are read from docs/reference/metrics.md, which test_reference.py compares with a broker's response.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.unit.project.pages import DOCS, ROOT

RULES = (ROOT / "conf" / "prometheus-rules.yml").read_text()
BOARD: dict[str, Any] = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
OF_THE_SCRAPE = {"instance", "job", "le"}
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "up"}


def metrics() -> dict[str, set[str]]:
    """Labels by name of series."""
    found = {}
    page = (DOCS / "reference" / "metrics.md").read_text()
    for name, kind, labels in re.findall(r"^\| `(brokerd_\w+)` \| (\w+) \| (.*?) \|", page, re.MULTILINE):
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = set(re.findall(r"`(\w+)`", labels))
    return found


def expressions() -> list[str]:
    rules = re.findall(r"expr: (.*)", RULES)
    board = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    return [*rules, *board]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_uses_what_there_is(expression: str) -> None:
    known = metrics() | {name: set[str]() for name in re.findall(r"record: (\S+)", RULES)}
    expression = expression.partition(" #")[0]
    used = set(re.findall(r"\b(?:brokerd|process)[_:]\w+|\bup\b", re.sub(r'"[^"]*"', "", expression)))
    assert used
    assert used - set(known) - OF_THE_PROCESS == set()
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    labels |= {label.strip() for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(",")}
    assert labels - set().union(*(known.get(name, set()) for name in used)) - OF_THE_SCRAPE == set()


def test_the_guide_explains_each_alert_and_no_other() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES)
    explained = re.findall(r"^\| `(Brokerd\w+)` \|", (DOCS / "monitoring.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(alerts)


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def default_of(setting: str) -> int:
    found = re.search(rf"`{re.escape(setting)}` \| `(\d+)`", (DOCS / "reference" / "settings-broker.md").read_text())
    assert found is not None
    return int(found[1])


def test_a_threshold_that_repeats_a_setting_is_its_default() -> None:
    assert f"brokerd_dirty_bytes > 0.8 * {default_of('log.max.dirty.bytes')} #" in RULES
    assert f"brokerd_replica_lag_seconds > {default_of('replica.lag.time.max.ms') // 2_000} #" in RULES


def test_whatever_is_known_of_copies_is_on_the_dashboard_and_what_harms_is_an_alert() -> None:
    known = {name for name in metrics() if re.search(r"_(replica|isr|elections|reassigning|offline|under)", name)}
    assert len(known) >= 10
    board = " ".join(target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", []))
    assert {name for name in known if name not in board} == set()
    assert {name for name in known if name not in RULES and "_bytes_" not in name} == {"brokerd_replica_lag_records"}  # chart only
