"""Goal: commands in a terminal work against a real broker, and report what they did. Method: `main` in this process against a
daemon; a real process where signals and pipes matter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokerd.testing import Broker
from tests.integration.conftest import Terminal
from tests.support.child import child
from tests.support.daemon import DaemonProcess, RunningDaemon, running_daemon
from tests.support.findings import topic_segment
from tests.support.wait import DEADLINE_S

pytestmark = pytest.mark.usefixtures("terminal_at_daemon")
BROKERD = [sys.executable, "-m", "brokerd"]
ELSEWHERE = "'brokerd topics list' prints those that you may see"


def test_topics_from_creation_to_deletion(terminal: Terminal) -> None:
    assert terminal.run("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=5000") == (
        0,
        "created topic 'life' with 2 partitions\n",
        "",
    )
    assert terminal.run("topics", "create", "life") == (1, "", "brokerd: topic 'life' already exists\n")
    assert terminal.run("topics", "create", "life", "--if-not-exists") == (
        0,
        "topic 'life' already exists with 2 partitions: nothing to do\n",
        "",
    )
    assert "life\n" in terminal.run("topics", "list")[1]
    assert terminal.run("topics", "alter", "life", "-p", "3", "-c", "segment.bytes=8192", "--delete-config", "retention.ms")[1] == (
        "changed topic 'life': partitions 2 -> 3, segment.bytes=8192, retention.ms as the broker's\n"
    )
    described = terminal.run("topics", "describe", "life")[1]
    assert described.startswith("topic life: 3 partitions, 0 offsets, 0 B, id ")
    assert "set: segment.bytes=8192\n" in described
    (document,) = json.loads(terminal.run("topics", "describe", "life", "--json")[1])
    assert document["configs"]["segment.bytes"] == {"value": "8192", "is_default": False}
    assert [partition["high_watermark"] for partition in document["partitions"]] == [0, 0, 0]
    assert terminal.run("topics", "delete", "life") == (0, "deleted topic 'life'\n", "")
    assert terminal.run("topics", "delete", "life", "--if-exists") == (0, "there is no topic 'life': nothing to do\n", "")


def test_each_topic_that_cannot_be_deleted_is_named(terminal: Terminal) -> None:
    terminal.run("topics", "create", "gone")
    assert terminal.run("topics", "delete", "zzz", "gone", "yyy") == (
        1,
        "deleted topic 'gone'\n",
        "".join(f"brokerd: there is no topic '{name}': {ELSEWHERE}\n" for name in ("zzz", "yyy")),
    )


def test_alter_changes_nothing_if_any_part_is_wrong(terminal: Terminal) -> None:
    terminal.run("topics", "create", "half", "-p", "1")
    code, _, error = terminal.run("topics", "alter", "half", "-p", "4", "-c", "retention.mss=1")
    assert (code, error) == (1, "brokerd: unknown setting 'retention.mss' (topic setting): did you mean 'retention.ms'?\n")
    assert "half: 1 partition," in terminal.run("topics", "describe", "half")[1]


def test_dry_run_creates_nothing(terminal: Terminal) -> None:
    assert terminal.run("topics", "create", "dry", "--dry-run")[:2] == (0, "topic 'dry' can be created\n")
    assert "dry\n" not in terminal.run("topics", "list")[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["topics", "create", "bad name"], "'bad name' cannot be a topic's name: only letters"),
        (
            ["topics", "create", "t", "-p", "1000000"],
            "topic 't' cannot have 1000000 partitions: max.partitions.per.topic is 10000",
        ),
        (
            ["topics", "create", "t", "-r", "2"],
            "topic 't' cannot have a replication factor of 2: this node is alone, and copies need a cluster of several",
        ),
        (
            ["cluster", "reassign", "known-topic", "0", "--replicas", "1,2"],
            "topic 'known-topic' cannot be moved: this node is alone, and has the only copy",
        ),
        (["cluster", "move-leader", "known-topic", "0", "9"], "node 9 has no copy of known-topic-0, which is on 0: give it one"),
        (["cluster", "reassign", "known-topic", "4", "--stop"], "topic 'known-topic' has partitions 0 to 0, not 4"),
        (["cluster", "drain", "0"], "node 0 cannot be drained: this node is alone, and there is no other one to move to"),
        (["topics", "describe", "known-topik"], "there is no topic 'known-topik': did you mean 'known-topic'?"),
        (["topics", "delete", "zzz"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["topics", "alter", "zzz", "-p", "2"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["topics", "trim", "zzz", "--before", "1"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["topics", "describe", "zzz"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["cluster", "elect-leaders", "zzz"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["groups", "reset", "g", "--topic", "zzz", "--to-latest"], f"there is no topic 'zzz': {ELSEWHERE}"),
        (["consume", "known-topci"], "there is no topic 'known-topci': did you mean 'known-topic'?"),
        (["consume", "zzz"], "there is no topic 'zzz': create it (brokerd topics create zzz --partitions N), or correct the name"),
        (["consume", "../zzz"], "'../zzz' cannot be a topic's name: only letters, digits, '.', '_' and '-' are allowed (ASCII)"),
        (
            ["topics", "alter", "known-topic", "-p", "1"],
            (
                "topic 'known-topic' cannot have 1 partition: the number can only grow, from the current 1 to at most 10000 "
                "(max.partitions.per.topic)"
            ),
        ),
        (["consume", "known-topic", "-p", "7"], "topic 'known-topic' has partitions 0 to 0, not 7"),
        (
            ["consume", "known-topic", "-o", "99"],
            "there is no offset 99 in known-topic-0: it starts at offset 0, and its next record gets offset 0",
        ),
        (["produce", "zzz"], "there is no topic 'zzz': create it (brokerd"),
        (["produce", "known-topic", "-p", "7"], "topic 'known-topic' has partitions 0 to 0, not 7"),
        (["produce", "known-topic", "--file", "/no/such"], "cannot read /no/such: No such file or directory"),
        (["produce", "known-topic", "--file", "/proc/self/mem"], "cannot read /proc/self/mem: Input/output error"),
    ],
)
def test_failure_is_one_sentence(terminal: Terminal, arguments: list[str], sentence: str) -> None:
    terminal.run("topics", "create", "known-topic", "-p", "1", "--if-not-exists")
    code, out, error = terminal.run(*arguments, stdin=b"x\n")
    assert (code, out) == (1, "")
    assert error.startswith("brokerd: " + sentence)
    assert error.count("\n") == 1


def test_lines_are_written_and_read_back(terminal: Terminal) -> None:
    terminal.run("topics", "create", "lines", "-p", "1")
    data = b"k1\t1\nno key\nk1\t2\n\nk3\tNULL\nlast"
    written = terminal.run("produce", "lines", "-K", "\\t", "-Z", "NULL", "-H", "source=test", stdin=data)
    assert written == (0, "", "6 records written to topic 'lines'\n")
    assert terminal.run("consume", "lines", "--exit") == (
        0,
        "1\nno key\n2\n\n\nlast\n",
        "6 records from 1 partition of topic 'lines'\n",
    )
    assert terminal.run("consume", "lines", "-e", "-q", "-K", ":")[1] == "k1:1\n:no key\nk1:2\n:\nk3:\n:last\n"
    assert terminal.run("consume", "lines", "-e", "-f", "%p/%o %k=%s [%h];", "-n", "1")[1] == "0/0 k1=1 [source=test];"
    documents = [json.loads(line) for line in terminal.run("consume", "lines", "-e", "--json")[1].splitlines()]
    assert [document["offset"] for document in documents] == list(range(6))
    assert [document["key"] for document in documents] == ["k1", None, "k1", None, "k3", None]
    assert [document["value"] for document in documents] == ["1", "no key", "2", "", None, "last"]
    assert documents[0]["headers"] == [{"key": "source", "value": "test"}]


def test_partitions_of_producer_and_consumer(terminal: Terminal) -> None:
    terminal.run("topics", "create", "parts", "-p", "3")
    terminal.run("produce", "parts", "-p", "1", stdin=b"a\nb\n")
    terminal.run("produce", "parts", "-p", "2", stdin=b"c\n")
    assert terminal.run("consume", "parts", "-e", "-p", "1")[1] == "a\nb\n"
    assert terminal.run("consume", "parts", "-e", "-p", "2", "-p", "0")[1] == "c\n"
    assert sorted(terminal.run("consume", "parts", "-e", "-f", "%p%s ")[1].split()) == ["1a", "1b", "2c"]


def test_many_lines_are_all_there_and_in_order(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("topics", "create", "many", "-p", "4")
    numbers = tmp_path / "numbers"
    numbers.write_text("".join(f"{number}\n" for number in range(200_000)))
    assert terminal.run("produce", "many", "--file", str(numbers))[2] == "200000 records written to topic 'many'\n"
    by_partition: dict[str, list[int]] = {}
    for line in terminal.run("consume", "many", "-e", "-q", "-f", "%p %s\n")[1].splitlines():
        partition, number = line.split()
        by_partition.setdefault(partition, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert sorted(number for numbers in by_partition.values() for number in numbers) == list(range(200_000))


def test_oversized_record_names_the_limit(terminal: Terminal) -> None:
    terminal.run("topics", "create", "small", "-p", "1", "-c", "max.message.bytes=2000")
    code, _, error = terminal.run("produce", "small", stdin=b"x" * 5_000)
    assert code == 1
    assert "exceeds the topic's max.message.bytes (2000)" in error
    code, _, error = terminal.run("produce", "small", stdin=b"x" * 9_000_000)
    assert code == 1
    assert "max.request.size (8388608)" in error


def test_consume_stops_after_silence(terminal: Terminal) -> None:
    terminal.run("topics", "create", "silent", "-p", "1")
    assert terminal.run("consume", "silent", "--timeout-ms", "50")[::2] == (0, "0 records from 1 partition of topic 'silent'\n")


def test_dump_log_and_doctor(terminal: Terminal, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_daemon(data_dir) as own:
        terminal.use(own.address)
        terminal.run("topics", "create", "dumped", "-p", "1")
        terminal.run("produce", "dumped", "-K", ":", stdin=b"k:one\ntwo\n")
        code, _, error = terminal.run("doctor", str(data_dir))
        assert (code, "is locked" in error) == (1, True)
    assert terminal.run("doctor", str(data_dir)) == (0, f"{data_dir}: all in order, nothing to do\n", "")
    assert json.loads(terminal.run("doctor", str(data_dir), "--json")[1]) == []
    unchanged = f"{data_dir}: no damage was found, and nothing was changed\n"
    assert terminal.run("doctor", str(data_dir), "--accept-damaged") == (0, unchanged, "")
    out = terminal.run("dump-log", str(data_dir), "--print-data")[1]
    assert "offsets 0-1, 2 records" in out
    assert 'key "k", value "one"' in out
    assert 'key null, value "two"' in out
    assert "durable_end 2" in out
    entries = [json.loads(line) for line in terminal.run("dump-log", str(data_dir), "--json", "--print-data")[1].splitlines()]
    (batch,) = (entry for entry in entries if entry["type"] == "batch" and "value" in entry["records"][0])
    assert [record["value"] for record in batch["records"]] == ["one", "two"]
    log = topic_segment(data_dir)
    spoilt = bytearray(log.read_bytes())
    spoilt[-9] ^= 1
    log.write_bytes(spoilt)
    assert "PROBLEM at byte 0, offset 0: payload_crc does not match" in terminal.run("dump-log", str(log), "--print-data")[1]
    code, out, _ = terminal.run("doctor", str(data_dir))
    assert code == 1
    assert "error: dumped-0 at offset 0" in out
    assert terminal.run("dump-log", "/no/such/path")[0] == 1


def test_doctor_makes_lost_files_anew(terminal: Terminal, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_daemon(data_dir) as own:
        terminal.use(own.address)
        terminal.run("topics", "create", "named", "-p", "1")
        terminal.run("produce", "named", stdin=b"one\ntwo\n")
    (data_dir / "topics").unlink()
    code, out, _ = terminal.run("doctor", str(data_dir))
    assert code == 1
    assert "--rebuild-lost --name ID=NAME" in out
    topic_id = topic_segment(data_dir).parent.name.partition("-")[0]
    assert "takes NAME=VALUE" in terminal.run("doctor", str(data_dir), "--rebuild-lost", "--name", "events")[2]
    assert "--name needs --rebuild-lost" in terminal.run("doctor", str(data_dir), "--name", f"{topic_id}=named")[2]
    code, out, _ = terminal.run("doctor", str(data_dir), "--rebuild-lost", "--name", f"{topic_id}=named")
    assert (code, f"topic {topic_id} is called 'named' and has 1 partition" in out) == (0, True)
    with running_daemon(data_dir) as own:
        terminal.use(own.address)
        assert terminal.run("consume", "named", "--exit")[1] == "one\ntwo\n"


def test_doctor_that_cannot_write_names_the_data_directory(tmp_path: Path) -> None:
    """As on a full disk. The error must not name the command's output."""
    data_dir = tmp_path / "data"
    with running_daemon(data_dir):
        pass
    (data_dir / "checkpoint").unlink(missing_ok=True)
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); from brokerd.cli import main; sys.exit(main())"
    command = [sys.executable, "-B", "-c", code, "doctor", str(data_dir), "--rebuild-checkpoint"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    expected = f"brokerd: {data_dir}: a file could not be read or written: File too large\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


def test_every_header_of_a_name_is_written(terminal: Terminal) -> None:
    terminal.run("topics", "create", "repeated-headers")
    terminal.run("produce", "repeated-headers", "-q", "-H", "a=1", "-H", "b=", "-H", "a=2", stdin=b"x\n")
    code, out, _ = terminal.run("consume", "repeated-headers", "--exit", "-q", "-f", "%h\\n")
    assert (code, out) == (0, "a=1,b=,a=2\n")


def test_follower_prints_what_comes_rides_over_a_restart_and_ends_by_ctrl_c(terminal: Terminal) -> None:
    with Broker() as broker, ExitStack() as stack:
        terminal.use(broker.bootstrap_servers)
        terminal.run("topics", "create", "t", "-p", "1")
        follower = stack.enter_context(
            child([*BROKERD, "consume", "t", "--from-beginning"], env={**os.environ, "PYTHONFAULTHANDLER": "1"})
        )
        assert follower.stdout is not None
        for value in ("before", "after"):
            assert terminal.run("produce", "t", "-q", stdin=value.encode()) == (0, "", "")
            assert follower.stdout.readline() == value + "\n"
            if value == "before":
                broker.kill()
                broker.start()
        follower.send_signal(signal.SIGINT)
        try:
            out, err = follower.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            follower.send_signal(signal.SIGABRT)  # prints the stacks of all its threads
            pytest.fail(f"Ctrl-C did not end it:\n{follower.communicate()[1]}")
    assert (follower.returncode, out) == (130, "")
    assert all(": retrying for up to " in line for line in err.splitlines()), "it says no more than that the broker is away"


def test_reader_that_goes_away_is_no_trouble(daemon: RunningDaemon, terminal: Terminal) -> None:
    terminal.run("topics", "create", "pipe", "-p", "1")
    terminal.run("produce", "pipe", stdin=b"line\n" * 200_000)
    with child([*BROKERD, "consume", "pipe", "-e"]) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == "line\n"
        consumer.stdout.close()
        assert consumer.stderr.read() == ""
        assert consumer.wait(DEADLINE_S) == 141


def test_broker_in_a_pod_starts_and_says_which_variable_it_ignores(tmp_path: Path) -> None:
    given = {"BROKERD_PORT": "tcp://10.0.0.7:9192", "BROKERD_SERVICE_HOST": "10.0.0.7"}
    with DaemonProcess(tmp_path / "data", env=given) as daemon:
        assert daemon.terminate() == 0
    assert "environment variable BROKERD_PORT is ignored" in daemon.stderr_path.read_text()


def test_failed_produce_names_the_line_and_how_many_are_written(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("topics", "create", "failing", "-p", "1", "-c", "max.message.bytes=2000")
    code, _, error = terminal.run("produce", "failing", "--json", stdin=b'{"value": "a"}\n\n{"value": "b"}\n{"valeu": "c"}\n')
    assert (code, error) == (
        1,
        "brokerd: standard input, line 4: unknown field 'valeu': did you mean 'value'?; 2 records written\n",
    )
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" * 1_000 + b"x" * 5_000 + b"\n" + b"short\n" * 1_500)
    code, _, error = terminal.run("produce", "failing", "--file", str(file))
    assert code == 1
    assert error.startswith(f"brokerd: {file}, lines 1001 to 2000: ")
    count = int(error.split("; ")[-1].split()[0])
    assert error.endswith(f"; {count} records written\n")
    assert len(terminal.run("consume", "failing", "--exit", "-q")[1].splitlines()) == 2 + count
    code, _, error = terminal.run("produce", "failing", "--file", "/dev/zero")
    problem = "without a delimiter it exceeds max.request.size (8388608), so no request can hold it"
    assert (code, error) == (1, f"brokerd: /dev/zero, line 1: {problem}; 0 records written\n")
    assert terminal.run("produce", "failing", "--file", "/proc/self/mem")[2].endswith("Input/output error; 0 records written\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--json", "-K", ":"], "--key-separator is for lines of text, not for --json"),
        (["--json", "-Z", "NULL"], "--null is for lines of text, not for --json"),
        (["--keep-partitions"], "--keep-partitions needs --json"),
        (["--json", "--keep-partitions", "-p", "0"], "--keep-partitions needs --json and excludes --partition"),
    ],
)
def test_options_of_json_and_of_text_exclude_each_other(terminal: Terminal, options: list[str], problem: str) -> None:
    code, _, error = terminal.run("produce", "t", *options)
    assert (code, error) == (2, f"brokerd produce: {problem} (see 'brokerd produce --help')\n")


def test_lines_in_one_transaction_are_visible_together_or_never(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("topics", "create", "whole")
    options = ["--json", "--transactional-id", "import"]
    bad = b'{"value": "a"}\n{"value": "b"}\nno JSON\n'
    code, _, error = terminal.run("produce", "whole", *options, stdin=bad)
    assert code == 1
    assert "line 3: " in error
    assert error.endswith("; the transaction is aborted\n")
    good = b'{"value": "c"}\n{"value": "d"}\n'
    assert terminal.run("produce", "whole", *options, stdin=good) == (0, "", "2 records written to topic 'whole'\n")
    assert terminal.run("consume", "whole", "--exit", "-q")[1] == "c\nd\n"
    code, _, error = terminal.run("produce", "whole", "-X", "transactional.id=import", "--acks", "1", stdin=good)
    assert (code, "transactional.id needs acks=all" in error) == (2, True)
