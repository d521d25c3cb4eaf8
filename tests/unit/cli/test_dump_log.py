"""`brokerd dump-log` also prints batches that cannot be decoded, and times beyond the calendar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.cli.output import exact_time_text
from brokerd.record.batch import RecordBatch
from brokerd.storage.files import RealFiles
from tests.support.build import open_log
from tests.support.clock import START_WALL_MS
from tests.support.records import header_of, key_values, new_batch, poisoned


def test_a_batch_that_cannot_be_decoded_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager, log = open_log(RealFiles(str(tmp_path)))
    data = poisoned(new_batch(key_values([b"x" * 80] * 2), "none", log.tp), tp=log.tp)
    log.append(RecordBatch(header_of(data), data), now_wall_ms=START_WALL_MS)
    manager.close()
    (path,) = tmp_path.glob("*/*.log")
    assert main(["dump-log", str(path), "--json", "--print-data"]) == 0
    _, batch = map(json.loads, capsys.readouterr().out.splitlines())
    (record,) = batch["records"]
    assert "batch at offset 0" in record["problem"]
    assert main(["dump-log", str(path), "--print-data"]) == 0
    assert "    PROBLEM: batch at offset 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (1_700_000_000_123, "2023-11-14 22:13:20.123Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_times_beyond_the_calendar_are_numbers(timestamp_ms: int, text: str) -> None:
    assert exact_time_text(timestamp_ms) == text
