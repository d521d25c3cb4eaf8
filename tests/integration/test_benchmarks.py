"""The benchmarks run, with small numbers, and report in the right form. This test only keeps them working."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import cast

import pytest

from benchmarks import testing_broker
from benchmarks.many_transactions import with_calls
from benchmarks.measure import Figures, Work, table
from benchmarks.run import main
from brokerd.client.broker_client import BrokerClient
from tests.support.loop import one_turn


def test_clients_are_measured_beside_their_ceilings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    options = ["--rows", "20000", "--repeats", "1", "--partitions", "3", "--data-dir", str(tmp_path)]
    assert main([*options, "--only", "clients", "--out", str(out)]) == 0
    told = json.loads(out.read_text())
    measured = {(one["work"], one["peer"]) for one in told["figures"]}
    assert measured == {
        (work, peer)
        for work in ("producer send_batch", "consumer", "consumer poll_arrow", "consumer poll", "producer send")
        for peer in ("brokerd", "ceiling")
    }
    assert all(one["median_s"] > 0 for one in told["figures"])
    assert told["machine"]["page_cache_ms_per_mb"] > 0
    assert "of ceiling" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["catch_up", "faces", "failover", "producer_micro", "trace"])
def test_help_measures_nothing(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.slow
def test_the_groups_about_the_broker_report_their_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing_broker, "_COLD_ROUNDS", 1)
    out = tmp_path / "results.json"
    parked = ["--waiters", "150", "--appends", "20", "--quiet-seconds", "0.1"]
    options = [*parked, "--brokers", "2", "--repeats", "1", "--data-dir", str(tmp_path)]
    assert main([*options, "--only", "parked,testing", "--out", str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["parked"]["accepted"] == 150
    assert told["parked"]["responses"] == told["parked"]["responses_expected"] == 20
    assert told["parked"]["of_them_empty"] == 0
    assert {row["step"]: row["count"] for row in told["testing"]}["start, warm"] == 2
    assert "start, warm" in capsys.readouterr().out


def test_work_of_no_time_has_one_call_beside_it() -> None:
    class Client:
        calls = 0

        async def metadata(self, _topics: list[str]) -> None:
            await one_turn()
            self.calls += 1

    async def work() -> str:
        return "done"

    client = Client()
    result, longest_ms = asyncio.run(with_calls(cast("BrokerClient", client), work()))
    assert (result, client.calls) == ("done", 1)
    assert longest_ms > 0


def test_an_unknown_group_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "clients,nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_shares_compare_bytes_a_second_and_median_latencies() -> None:
    def figures(peer: str, *, seconds: list[float], latencies: list[float], size_bytes: int) -> Figures:
        return Figures(Work("w", peer, lambda _: 0.0, 100, size_bytes, 0.4), seconds, latencies)

    ours = figures("brokerd", seconds=[2.0, 4.0, 9.0], latencies=[], size_bytes=1_000)
    ceiling = figures("ceiling", seconds=[1.0], latencies=[], size_bytes=500)
    assert "50%" in table([ours, ceiling])
    ours = figures("brokerd", seconds=[1.0], latencies=[0.004] * 9, size_bytes=1)
    ceiling = figures("ceiling", seconds=[1.0], latencies=[0.001] * 9, size_bytes=1)
    assert "25%" in table([ours, ceiling])
