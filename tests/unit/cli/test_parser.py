"""Goal: a wrong command line prints one sentence with the nearest valid word, and exits with 2; help imports no heavy library."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from brokerd.cli import main
from brokerd.cli.commands import COMMANDS
from brokerd.errors import ConfigError
from tests.support.wait import DEADLINE_S

CREATE = "brokerd topics create"
LIST = "brokerd topics list"
PLACE = (
    "{} takes earliest, latest, N (that offset), -N (the newest N records), -10m (so long ago), 2026-01-31T12:00:00Z, or @ and ms "
    "since 1970, not '{}'"
)


@pytest.mark.parametrize(
    ("arguments", "prog", "problem"),
    [
        ([], "brokerd", "the following arguments are required: COMMAND"),
        (["topcs"], "brokerd", "unknown command 'topcs': did you mean 'topics'?"),
        (["topics", "crate", "x"], "brokerd topics", "unknown command 'crate': did you mean 'create'?"),
        (["topics", "create", "x", "--partition=3"], CREATE, "unknown option '--partition': did you mean '--partitions'?"),
        (["topics", "create", "x", "--part", "3"], CREATE, "unknown option '--part': did you mean '--partitions'?"),
        (["topics", "list", "x"], LIST, "unexpected argument 'x'"),
        (["-b", "h:1", "topics", "list"], "brokerd", "option '-b' must come after the command"),
        (
            ["groups", "--bootstrap-server", "h:1", "list"],
            "brokerd groups",
            "option '--bootstrap-server' must come after the command",
        ),
        (["groups", "--json", "list"], "brokerd groups", "option '--json' must come after the command"),
        (["consume", "a\udcff"], "brokerd consume", "b'a\\xff' is not UTF-8 text"),
        (["consume", "--pattern", "\udcff"], "brokerd consume", "b'\\xff' is not UTF-8 text"),
        (["groups", "describe", "\udcff"], "brokerd groups describe", "b'\\xff' is not UTF-8 text"),
        (
            ["doctor", "d", "--take-out", f"t-0@{'9' * 5000}"],
            "brokerd doctor",
            f"--take-out takes PARTITION@OFFSET, as in events-0@1234, not 't-0@{'9' * 196}'",
        ),
        (
            ["doctor", "d", "--only-copy", "t-0"],
            "brokerd doctor",
            "--only-copy needs --accept-damaged, --give-up-damaged, --take-out or --rebuild-checkpoint",
        ),
        (["topics", "create", "x", "-p", "many"], CREATE, "argument -p/--partitions: invalid int value: 'many'"),
        (["topics", "create", "x", "-p", "1_0"], CREATE, "argument -p/--partitions: invalid int value: '1_0'"),
        (["topics", "create", "x", "-p", "٣"], CREATE, "argument -p/--partitions: invalid int value: '٣'"),
        (["topics", "create", "x", "-p", "-1"], CREATE, "--partitions must be at least 1, not -1"),
        (["topics", "create", "x", "-p", "0"], CREATE, "--partitions must be at least 1, not 0"),
        (
            ["topics", "alter", "x", "-p", "2147483648"],
            "brokerd topics alter",
            "--partitions must be at most 2147483647, not 2147483648",
        ),
        (["topics", "create", "x", "-c", "retention.ms"], CREATE, "--config takes NAME=VALUE, not 'retention.ms'"),
        (["topics", "alter", "x"], "brokerd topics alter", "nothing to change: give --partitions, --config or --delete-config"),
        (["topics", "list", "-X", "client.ids=5"], LIST, "unknown setting 'client.ids' (option -X): did you mean 'client.id'?"),
        (["consume", "t", "-X", "check.crcs=5"], "brokerd consume", "check.crcs must be true or false, not '5' (option -X)"),
        (["consume", "t", "-X", "bootstrap.servers=h:1"], "brokerd consume", "give bootstrap.servers by --bootstrap-server"),
        (
            ["consume", "t", "-o5", "--from-beginning"],
            "brokerd consume",
            "--offset and --from-beginning contradict each other: give one",
        ),
        (["consume", "t", "-o", "soon"], "brokerd consume", PLACE.format("--offset", "soon")),
        (["consume", "t", "--end=-5w"], "brokerd consume", PLACE.format("--end", "-5w")),
        (["consume", "t", "-o", "@noon"], "brokerd consume", PLACE.format("--offset", "@noon")),
        (["consume", "t", "-e", "--end", "5"], "brokerd consume", "--end and --exit contradict each other: give one"),
        (["consume"], "brokerd consume", "name a TOPIC, or give a --pattern"),
        (
            ["consume", "--pattern", "a("],
            "brokerd consume",
            "--pattern 'a(' is not a regular expression: missing ), unterminated subpattern at position 1",
        ),
        (
            ["consume", "t", "--timeout-ms", "2147483648"],
            "brokerd consume",
            "--timeout-ms must be at most 2147483647, not 2147483648",
        ),
        (["consume", "t", "-n", "0"], "brokerd consume", "--max-messages must be at least 1, not 0"),
        (["consume", "t", "-f", "%"], "brokerd consume", "the format ends with a single '%': write '%%' for a percent sign"),
        (["transactions", "abort"], "brokerd transactions abort", "the following arguments are required: ID"),
        (
            ["transactions", "list", "--state", "opened"],
            "brokerd transactions list",
            "unknown -s/--state 'opened': did you mean 'open'?",
        ),
        (
            ["transactions", "find-hanging", "--idle-ms", "0"],
            "brokerd transactions find-hanging",
            "--idle-ms must be at least 1, not 0",
        ),
        (
            ["start", "--metrics.port", "9464"],
            "brokerd start",
            "unknown option '--metrics.port': did you mean '--set metrics.port=...'?",
        ),
        (["start", "--data.dir", "d"], "brokerd start", "unknown option '--data.dir': did you mean '--data-dir'?"),
        (
            ["topics", "create", "x", "--retention-ms=5"],
            CREATE,
            "unknown option '--retention-ms': did you mean '--config retention.ms=...'?",
        ),
        (["produce", "t", "--linger.ms", "5"], "brokerd produce", "unknown option '--linger.ms': did you mean '-X linger.ms=...'?"),
        (["produce", "t", "--nosuch"], "brokerd produce", "unknown option '--nosuch'"),
        (["nosuch"], "brokerd", "unknown command 'nosuch'"),
        (["produce", "t", "--acks", "2"], "brokerd produce", "unknown --acks '2': choose from all, 1, 0"),
        (["produce", "t", "-K", ""], "brokerd produce", "--key-separator must not be empty"),
        (["produce", "t", "-H", "x"], "brokerd produce", "--header takes NAME=VALUE, not 'x'"),
        (
            ["produce", "t", "-X", "linger.ms=-1"],
            "brokerd produce",
            "linger.ms must be between 0 and 2147483647, not -1 (option -X)",
        ),
    ],
)
def test_wrong_command_line_is_one_sentence(
    arguments: list[str], prog: str, problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERD_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"{prog}: {problem} (see '{prog} --help')\n")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in COMMANDS), ["topics", "create", "--help"], ["transactions", "abort", "--help"]],
)
def test_help_is_printed_with_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: brokerd")
    assert max(len(line) for line in text.splitlines()) <= 130


def test_every_command_has_a_function_that_runs_it() -> None:
    commands = [one for command in COMMANDS.values() for one in (command.verbs or (command,))]
    for command in commands:
        module, function = command.run.split(".")
        assert callable(getattr(importlib.import_module(f"brokerd.cli.{module}"), function)), command.run


def test_help_imports_neither_grpc_nor_arrow() -> None:
    program = (
        "import sys; from brokerd.cli import main; from brokerd.cli.commands import COMMANDS\n"
        "for words in ([], *([name] for name in COMMANDS)):\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit: pass\n"
        "print([name for name in ('grpc', 'pyarrow', 'numpy', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_address_of_the_broker_option_wins_over_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERD_BOOTSTRAP_SERVER", "environment")
    assert main(["topics", "list"]) == 1
    assert main(["topics", "list", "--bootstrap-server", "option"]) == 1
    text = "brokerd: bootstrap.servers must be host:port, with a port from 1 to 65535 (several separated by commas), not '{}'"
    assert capsys.readouterr().err.splitlines() == [text.format("environment"), text.format("option")]


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_settings_of_reader_and_writer_come_from_a_file_too(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "fetch.max.bytes=5000" if command == "consume" else "linger.ms=7"
    file = tmp_path / "client.properties"
    file.write_text(f"default.api.timeout.ms=100\nretry.backoff.ms=10\nrequest.timeout.ms=1000\n{own}\n")
    assert main([command, "t", "-b", "127.0.0.1:1", "--command-config", str(file)]) == 1
    error = capsys.readouterr().err
    assert re.match(r"brokerd: no broker responded at 127\.0\.0\.1:1 in \d+\.\d s", error)
    assert error.endswith(" (--bootstrap-server or BROKERD_BOOTSTRAP_SERVER sets the address)\n")
    assert error.count("\n") == 1


def test_an_option_of_the_command_wins_over_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=0\nenable.idempotence=false\ntransactional.id=of-the-file\n")
    words = ["produce", "t", "--command-config", str(file), "-X", "linger.ms=1", "-X", "acks=1"]
    kept: list[Any] = []

    def keep(_args: object, config: object) -> NoReturn:
        kept.append(config)
        raise ConfigError("kept")

    monkeypatch.setattr("brokerd.cli.produce.connect", keep)
    assert main([*words, "--acks", "all", "--transactional-id", "of-the-option", "-X", "enable.idempotence=true"]) == 1
    assert (kept[0].acks, kept[0].transactional_id, kept[0].linger_ms) == ("all", "of-the-option", 1)
    monkeypatch.setattr("brokerd.cli.consume.connect", keep)
    assert main(["consume", "t", "--isolation-level", "read_uncommitted", "-X", "isolation.level=read_committed"]) == 1
    assert kept[1].isolation_level == "read_uncommitted"
