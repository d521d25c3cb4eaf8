"""Goal: an undecodable batch with correct CRCs never blocks a topic for good. Method: a daemon process, the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Terminal
from tests.support.daemon import DaemonProcess
from tests.support.raw_client import RawClient, values_batch
from tests.support.records import key_values, new_batch, poisoned


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_poison_is_named_with_its_remedy_and_taken_out(
    compression: str,
    tmp_path: Path,
    terminal: Terminal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = terminal.run
    data_dir = tmp_path / "data"
    consume = ("consume", "t", "--exit", "-q", "-f", "%o\\n")
    with DaemonProcess(data_dir) as daemon:
        terminal.use(daemon.address)
        with RawClient(daemon.address) as client:
            (tp,) = client.create_topic("t")
            producer = client.producer()
            producer.produce(tp, values_batch(tp))
            columns = key_values([b"x" * 500] * 3)
            producer.produce(tp, poisoned(new_batch(columns, compression, tp), compression, tp))
            producer.produce(tp, values_batch(tp))
        code, out, said = run(*consume)
        assert (code, out) == (1, "0\n")
        assert "batch at offset 1" in said
        assert "`--take-out t-0@1`" in said
        assert run(*consume, "-X", "skip.corrupt.batches=true")[:2] == (0, "0\n4\n")
        assert daemon.terminate() == 0
        assert run("doctor", str(data_dir))[0] == 0
        code, out, _ = run("doctor", str(data_dir), "--decode")
        assert (code, "error: t-0 at offset 1" in out) == (1, True)
        assert run("doctor", str(data_dir), "--take-out", "t-0")[0] == 2
        code, out, _ = run("doctor", str(data_dir), "--take-out", "t-0@2")
        assert (code, "offsets 1 to 3, one batch, are taken out" in out) == (0, True)
        assert run("doctor", str(data_dir), "--decode")[0] == 0
        daemon.restart()
        assert run(*consume)[:2] == (0, "0\n4\n")
        assert "t-0: offsets 1 to 3 are skipped: they were taken out of the log" in caplog.text
        assert run(*consume, "--offset", "2")[:2] == (0, "4\n")
        with RawClient(daemon.address) as client:
            assert client.producer().produce(tp, values_batch(tp)).base_offset == 5
        daemon.kill()
        daemon.restart()
        assert run(*consume)[1] == "0\n4\n5\n"
        assert daemon.terminate() == 0
    assert "t-0: offsets 1 to 3 are taken out" in daemon.stderr_path.read_text()
