"""A broker's life: start, ready, drain, clean stop, restart; and every way in which a start can fail."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.errors import DataDirectoryError, ErrorCode
from brokerd.server.daemon import Daemon, ListenError
from tests.integration.conftest import Terminal
from tests.support.daemon import DaemonProcess, RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import LONG_MS, RawClient, idempotent_batch, values_batch
from tests.support.wait import DEADLINE_S, wait_until


@pytest.mark.parametrize("settings", [{"shutdown_grace_ms": 600_000}], indirect=True)
def test_a_stop_answers_parked_fetches_waits_for_flushes_and_closes_cleanly(
    tmp_path: Path, running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    tp, quiet = client.create_topic(partitions=2)
    fetcher, stream, idle = client.fetcher(), client.producer(), client.producer()
    idle.produce(quiet, values_batch(quiet))
    fetcher.post({quiet: 1}, max_wait_ms=LONG_MS)
    wait_until(lambda: len(running.daemon.broker.fetch_purgatory) == 1)
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        stream.post([(tp, values_batch(tp))])
        gate.wait_until_reached()
        stopping = running.begin_stop()
        head, (batches,) = fetcher.answer()
        assert not head.results[0].HasField("error"), "answered with what there is: nothing"
        assert not batches
        assert not stopping.done(), "the flush is not done"
        assert client.status("Metadata")[0] is grpc.StatusCode.UNAVAILABLE
    assert stream.answer().results[0].base_offset == 0, "acknowledged on the way out"
    stopping.result(DEADLINE_S)
    assert stream.status()[0] is idle.status()[0] is grpc.StatusCode.UNAVAILABLE
    running.stop()
    assert "clean-shutdown" in files.paths()
    assert files.open_count == 0
    with running_daemon(tmp_path / "data", files=files) as again, RawClient(again.address) as client:
        assert client.latest(tp) == 1


@pytest.mark.parametrize("settings", [{"shutdown_grace_ms": 50}], indirect=True)
def test_a_stop_waits_no_longer_than_the_grace_for_a_client_that_does_not_read(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    filler = client.producer()
    for _ in range(8):
        filler.produce(tp, values_batch(tp, size=1_000_000))
    blocked: Any = client.channel.stream_stream("/brokerd.wire.v1.Broker/Fetch")
    fetcher = client.fetcher()
    for _ in range(8):
        fetcher.post({tp: 0}, max_bytes=2**24)  # 64 MB of responses that are not read
    assert blocked is not None
    # running_daemon's stop() fails if it takes longer than its deadline.


def test_requests_on_open_streams_are_refused_while_stopping(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream, fetcher = client.producer(), client.fetcher()
    stream.produce(tp, values_batch(tp))
    fetcher.fetch({tp: 0})
    running.daemon.broker.begin_stop()
    stream.post([(tp, values_batch(tp))])
    answer = stream.answer()
    assert ErrorCode(answer.error.code) is ErrorCode.NOT_READY
    assert answer.error.retriable
    assert ErrorCode(fetcher.fetch({tp: 0}, max_wait_ms=LONG_MS)[0].error.code) is ErrorCode.NOT_READY
    late = client.producer()
    late.post([(tp, values_batch(tp))])
    assert late.status()[0] is grpc.StatusCode.UNAVAILABLE


def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as running:
        taken = running.daemon.port
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{taken}: address already in use"):
            asyncio.run(Daemon(BrokerConfig(data_dir=str(tmp_path / "other"), port=taken)).start())
        with pytest.raises(DataDirectoryError, match="is locked"):
            asyncio.run(Daemon(BrokerConfig(data_dir=str(tmp_path / "data"), port=0)).start())
    assert not (tmp_path / "other").exists(), "the port comes first"


@pytest.mark.parametrize("host", ["256.0.0.1", "no such host", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_named(tmp_path: Path, host: str) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        asyncio.run(Daemon(BrokerConfig(data_dir=str(tmp_path / "data"), host=host, port=0, allow_unauthenticated=True)).start())


# The real process


@pytest.fixture
def process(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as started:
        yield started


def start_and_fail(daemon: DaemonProcess) -> tuple[int, str]:
    """Exit code and standard error of a start that must fail."""
    done = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def refused(terminal: Terminal, data_dir: Path, *options: str) -> str:
    """The error of a refused start, in this process; nothing is started."""
    code, out, error = terminal.run("start", "--data-dir", str(data_dir), "--port", "0", *options)
    assert (code, out, error.count("\n")) == (2, "", 1), error
    return error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(process: DaemonProcess, tmp_path: Path, number: signal.Signals) -> None:
    with RawClient(process.address) as client:
        (tp,) = client.create_topic()
        producer_id = client.new_producer_id()
        client.producer().produce(tp, idempotent_batch(tp, producer_id, 0, 3))
        fetcher = client.fetcher()
        fetcher.fetch({tp: 0})
        fetcher.post({tp: 3}, max_wait_ms=LONG_MS)
        process.process.send_signal(number)
        assert fetcher.status()[0] is grpc.StatusCode.UNAVAILABLE
        assert process._wait() == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()
    assert "Traceback" not in process.stderr_path.read_text()
    process.restart()
    with RawClient(process.address) as client:
        assert client.latest(tp) == 3
        stream = client.producer()
        assert stream.produce(tp, idempotent_batch(tp, producer_id, 0, 3)).base_offset == 0, "the same response after a restart"
        assert stream.produce(tp, idempotent_batch(tp, producer_id, 3)).base_offset == 3
    said = process.stderr_path.read_text()
    assert (said.count("is new or empty"), said.count("was closed cleanly")) == (1, 1)


def test_what_was_acknowledged_survives_a_kill_and_the_same_port_is_free_again(process: DaemonProcess) -> None:
    port = process.port
    with RawClient(process.address) as client:
        (tp,) = client.create_topic()
        producer_id = client.new_producer_id()
        stream = client.producer()
        for sequence in range(10):
            stream.produce(tp, idempotent_batch(tp, producer_id, sequence))
        process.kill()
    process.restart()
    assert process.port == port
    with RawClient(process.address) as client:
        assert client.latest(tp) == 10
        assert client.producer().produce(tp, idempotent_batch(tp, producer_id, 9)).base_offset == 9
        assert client.new_producer_id() > producer_id


def test_a_second_daemon_on_the_same_directory_or_port_is_refused_in_one_sentence(process: DaemonProcess, tmp_path: Path) -> None:
    code, text = start_and_fail(DaemonProcess(process.data_dir))
    assert (code, text.count("\n")) == (1, 1), text
    assert f"the data directory {process.data_dir} is locked" in text
    code, text = start_and_fail(DaemonProcess(tmp_path / "other", port=process.port))
    assert (code, text.count("\n")) == (1, 1), text
    assert f"cannot listen on 127.0.0.1:{process.port}: address already in use" in text


def test_a_wrong_setting_is_refused_in_one_sentence(terminal: Terminal, tmp_path: Path) -> None:
    cases = {
        "log.segment.byte": "unknown setting 'log.segment.byte' (given on the command line): did you mean 'log.segment.bytes'?",
        "log.segment.bytes": "log.segment.bytes must be between 4096 and 2147483647, not 1 (given on the command line)",
    }
    for name, sentence in cases.items():
        assert refused(terminal, tmp_path / "data", f"--set={name}=1").strip().endswith(sentence)


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, text = start_and_fail(DaemonProcess(tmp_path / "file"))
    assert code == 1
    assert str(tmp_path / "file") in text
    assert text.count("\n") == 1


def test_settings_come_from_file_environment_and_flags(terminal: Terminal, tmp_path: Path) -> None:
    config = tmp_path / "brokerd.toml"
    config.write_text("num.partitions = 3\nmax.topics = 5\nfetch.max.bytes = 2_000_000\n")
    daemon = DaemonProcess(tmp_path / "data", settings={"fetch.max.bytes": 1_000_000}, env={"BROKERD_MAX_TOPICS": "1"})
    command = daemon.command()
    daemon.command = lambda: [*command, "--config", str(config)]  # type: ignore[method-assign]
    with daemon, RawClient(daemon.address) as client:
        assert len(client.create_topic(partitions=0)) == 0
        assert len(client.metadata("t").topics[0].partitions) == 3
        with pytest.raises(AssertionError, match=r"max\.topics"):
            client.create_topic("second")
        assert daemon.terminate() == 0
    config.write_text("\nport = 'x'\n")
    assert f"port must be a whole number, not 'x' ({config})" in refused(terminal, tmp_path / "data", f"--config={config}")


def test_the_readiness_line_comes_only_once_it_serves(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path / "data") as daemon,
        socket.create_connection(("127.0.0.1", daemon.port), timeout=DEADLINE_S),
        RawClient(daemon.address) as client,
    ):
        assert client.metadata().nodes[0].port == daemon.port
