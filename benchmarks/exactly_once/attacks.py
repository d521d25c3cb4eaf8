"""The attacks. Each has its own pipeline, and reports what a read_committed reader sees in the end."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.exactly_once.pipeline import ROWS_PER_FILE, Pipeline
from benchmarks.exactly_once.processes import DriverDiedError, DriverProcess, Program
from benchmarks.exactly_once.relay import Relay
from benchmarks.exactly_once.standalone import HOSTS
from benchmarks.exactly_once.systems import System

FILES = 4
_IDLE_S = 100  # longer than the retention of offsets (a minute) and the brokers' check interval
_QUIET_S = 5
_DEADLINE_S = 120
_HIT = 2  # the micro-batch (of one file) in which an accident happens


class Outcome(NamedTuple):
    """Rows compared with the input, and the error of the last run."""

    rows: int
    doubled: int
    missing: int
    error: str = ""
    torn: int = 0  # rows of an unfinished micro-batch that were visible before its rerun
    void: int = 0  # rows in the system that read_committed readers do not see
    denied: int = 0  # visible rows whose writer got an error

    def text(self) -> str:
        """The text of a cell of the table."""
        said = []
        if self.doubled:
            said.append(f"**{self.doubled} doubled**")
        if self.missing and not self.error:
            said.append(f"**{self.missing} silently skipped**")
        if self.error:
            left_out = f", {self.missing} left out" if self.missing else ""
            said.append(f"refused: `{_condition(self.error)}`{left_out}")
        if self.denied:
            said.append(f"**its {self.denied} rows are there**")
        if self.torn:
            said.append(f"{self.torn} of an unfinished batch seen")
        if self.void:
            said.append(f"{self.void} void")
        is_exact = not (self.doubled or self.missing or self.error)
        return "; ".join((["exact"] if is_exact else []) + said)


class NotHitError(Exception):
    """An accident did not happen as intended, so the attack has no outcome."""


Make = Callable[..., Pipeline]


def _lost_commit(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _well(pipeline.run())
    pipeline.lose_last_commit()
    return _outcome(pipeline, pipeline.run())


def _killed_in_commit(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _dies(pipeline, "driver-killed-in-commit")
    missing = pipeline.counts()["missing"]
    if pipeline.is_noted(_HIT) or missing != (FILES - _HIT - 1) * ROWS_PER_FILE:
        raise NotHitError(f"the JVM died too early or too late: {missing} rows are missing")
    return _outcome(pipeline, pipeline.run())


def _killed_while_writing(make: Make, *, two_topics: bool = False) -> Outcome:
    pipeline = make(two_topics=two_topics)
    pipeline.add_files(_HIT)
    _well(pipeline.run())
    before = pipeline.counts()["there"]
    pipeline.add_files(FILES - _HIT)
    _dies(pipeline, "driver-killed")
    torn = pipeline.counts()["there"] - before
    return _outcome(pipeline, pipeline.run())._replace(torn=torn)


def _two_topics(make: Make) -> Outcome:
    return _killed_while_writing(make, two_topics=True)


def _task_retried(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    error = pipeline.run(accident="task-fails", from_file=_HIT)
    if not pipeline.happened():
        raise NotHitError(f"no task failed: {error[-2000:]}")
    return _outcome(pipeline, error)


def _twin(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(FILES)
    _well(pipeline.run(accident="slow-twin", from_file=_HIT))
    hosts = pipeline.hosts_at_once()
    if hosts is None or set(hosts) != set(HOSTS):
        raise NotHitError(f"no two attempts wrote at once: {hosts}")
    found, all_rows = pipeline.counts(), pipeline.counts(committed=False)
    void = all_rows["there"] + all_rows["doubled"] - found["there"] - found["doubled"]
    return _outcome(pipeline, "")._replace(void=void)


def _copied_checkpoint(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(2)
    _well(pipeline.run())
    copied = pipeline.copy_checkpoint()
    pipeline.add_files(2)
    _well(pipeline.run())
    return _outcome(pipeline, pipeline.run(checkpoint=copied))


def _restored_checkpoint(make: Make) -> Outcome:
    pipeline = make()
    pipeline.add_files(2)
    _well(pipeline.run())
    copied = pipeline.copy_checkpoint()
    pipeline.add_files(1)
    _well(pipeline.run())
    pipeline.add_files(1)
    return _outcome(pipeline, pipeline.run(checkpoint=copied, files=2))


def _one_job_group(make: Make) -> Outcome:
    pipeline = make(groups=["nightly"])
    pipeline.add_files(FILES)
    _well(pipeline.run())
    pipeline.lose_last_commit()
    return _outcome(pipeline, pipeline.run())


def _own_job_groups(make: Make) -> Outcome:
    pipeline = make(groups=["even", "odd"])
    pipeline.add_files(1)
    return _outcome(pipeline, pipeline.run())


def _backwards(make: Make) -> Outcome:
    pipeline = make()
    _well(pipeline.write_version(5))
    return _outcome(pipeline, pipeline.write_version(3))


def _older_version(make: Make) -> Outcome:
    pipeline = make()
    _well(pipeline.write_version(1))
    _well(pipeline.write_version(2))
    return _outcome(pipeline, pipeline.write_version(1))


def _lost_answer(make: Make) -> Outcome:
    """Two programs with one transactional id. The first gets no response to its commit until the other has committed."""
    pipeline, other_rows = make(), make()
    system, topic = pipeline.system, pipeline.topics[0]
    with Relay() as relay, pipeline.behind(relay):
        _well(other_rows.write_rows())  # starts Spark before the clients' timeouts run
        with (
            Program(system, "write", topic, "0", str(ROWS_PER_FILE)) as first,
            Program(system, "write", topic, str(ROWS_PER_FILE), str(2 * ROWS_PER_FILE)) as other,
        ):
            pipeline.expect(str(number) for number in range(2 * ROWS_PER_FILE))
            first.proceed()
            first.wait_for_lines(1)
            relay.lose_answers()
            first.proceed()
            _wait_for(lambda: pipeline.counts()["there"] == ROWS_PER_FILE, "the first commit")
            if len(first.said()) != 1:
                raise NotHitError(f"the first program was told too early: {first.said()}")
            other.proceed()
            other.wait_for_lines(1)
            other.proceed()
            other.wait_for_lines(2)
            relay.cut()
            told = first.wait_for_lines(2)[1]
        if told == "committed":
            return _outcome(pipeline, "")
        return _outcome(pipeline, told)._replace(denied=ROWS_PER_FILE)


def _idle_group(make: Make) -> Outcome:
    """The program polls throughout, and is restarted at the end."""
    source, target = make(), make()
    group = target.topics[0]
    with _copying(source, target, group) as program:
        time.sleep(_IDLE_S)
        _well(source.write_rows())
        _copied(source, target, program)
    _well(source.write_rows())
    with Program(source.system, "copy", source.topics[0], target.topics[0], group) as program:
        return _copied(source, target, program)


def _expired_group(make: Make) -> Outcome:
    """The program is suspended, as by a closed lid, until its group has expired."""
    source, target = make(), make()
    group = target.topics[0]
    with _copying(source, target, group) as program:
        program.process.send_signal(signal.SIGSTOP)
        time.sleep(_IDLE_S)
        _wait_for(lambda: _offsets(source, group) == 0, "the group expires")
        _well(source.write_rows())
        program.process.send_signal(signal.SIGCONT)
        return _copied(source, target, program)


@contextmanager
def _copying(source: Pipeline, target: Pipeline, group: str) -> Iterator[Program]:
    """A running program that has copied the first rows."""
    _well(source.write_rows())
    with Program(source.system, "copy", source.topics[0], target.topics[0], group) as program:
        outcome = _copied(source, target, program)
        if outcome.text() != "exact" or not _offsets(source, group):
            raise NotHitError(f"the program does not run without an accident: {outcome.text()}")
        yield program


def _copied(source: Pipeline, target: Pipeline, program: Program) -> Outcome:
    """The outcome once the program has copied everything."""
    target.expect(value for _, value in source.given)
    _wait_for(lambda: program.error() or program.said(), "the first transaction, which makes Kafka's topic")
    _wait_for(lambda: program.error() or not target.counts()["missing"], "the copy")
    said: list[str] = []
    while said != program.said():
        said = program.said()
        time.sleep(_QUIET_S)
    return _outcome(target, program.error())


def _offsets(source: Pipeline, group: str) -> int:
    with Program(source.system, "offsets", source.topics[0], group) as program:
        return int(program.wait_for_lines(1)[0])


def _restored_log(make: Make) -> Outcome:
    pipeline = make()
    _well(pipeline.write_rows())
    kept = set(pipeline.given)
    pipeline.system.back_up()
    _well(pipeline.write_rows())
    _well(pipeline.follow())
    if pipeline.followed().total() != len(pipeline.given):
        raise NotHitError(f"the query has read {pipeline.followed().total()} rows")
    pipeline.restore()
    pipeline.given = kept
    for _ in range(2):
        _well(pipeline.write_rows())
    if pipeline.counts()["missing"]:
        raise NotHitError("the backup is not whole")
    error = pipeline.follow()
    found = pipeline.followed()
    values = [value for _, value in pipeline.given]
    return Outcome(len(values), sum(max(0, found[one] - 1) for one in values), sum(not found[one] for one in values), error)


class Attack(NamedTuple):
    """One row of the table."""

    name: str
    text: str
    act: Callable[[Make], Outcome]
    needs: str = ""
    on_cluster: bool = False


ATTACKS = (
    Attack("lost-commit", "the last `commits/N` deleted, query restarted", _lost_commit),
    Attack("task-retried", "a task fails after all its rows went to the sink, and is run again", _task_retried),
    Attack("copied-checkpoint", "the original goes on, then a copy of its checkpoint with the same rows", _copied_checkpoint),
    Attack("restored-checkpoint", "the same, and the copy's micro-batch holds other rows as well", _restored_checkpoint),
    Attack("backwards", "`txnVersion` 5, then 3 with other rows", _backwards, needs="versions"),
    Attack("older-version", "`txnVersion` 1, then 2, then 1 again with the rows that it had", _older_version, needs="versions"),
    Attack("killed-while-writing", "driver killed between two tasks of a micro-batch, restarted", _killed_while_writing),
    Attack("killed-in-commit", "driver killed after the sink's commit, before `commits/N`, restarted", _killed_in_commit),
    Attack(
        "two-topics",
        "driver killed between two tasks that write to two topics (Delta: two tables in one `foreachBatch`), restarted",
        _two_topics,
    ),
    Attack(
        "one-job-group",
        "one job group set by the user for all writes inside `foreachBatch`, the last `commits/N` deleted, query restarted",
        _one_job_group,
    ),
    Attack(
        "own-job-groups",
        "two writes of as many rows and bytes to one topic inside one `foreachBatch`, after a `setJobGroup` each",
        _own_job_groups,
    ),
    Attack("twin", "a task runs twice at once on two hosts (speculation), its rows written by both", _twin, on_cluster=True),
    Attack(
        "lost-answer",
        "a program's commit is durable, its answer lost; another with the same `transactional.id` commits; the first asks again",
        _lost_answer,
        needs="programs with a transactional id",
    ),
    Attack(
        "idle-group",
        "a program that copies a topic has no input for longer than the retention of offsets, goes on, and is started again",
        _idle_group,
        needs="groups",
    ),
    Attack(
        "expired-group",
        "the same program is suspended until its group has expired (`auto.offset.reset=earliest`), and goes on",
        _expired_group,
        needs="groups",
    ),
    Attack(
        "restored-log",
        "a query has read 1000 rows; the data is restored from a copy that has 500 of them; 1000 new rows; the query goes on",
        _restored_log,
        needs="source of its own",
    ),
)


def attack(system: System, driver: DriverProcess, chosen: Attack, run: str) -> Outcome | None:
    """Runs an attack; None if it does not apply. Raises NotHitError, or DriverDiedError or RuntimeError if the driver fails."""
    if chosen.needs in system.lacks:
        return None
    made = 0

    def make(**kind: Any) -> Pipeline:
        nonlocal made
        made += 1
        return Pipeline(system, driver, f"{chosen.name}-{run}-{made}", **kind)

    return chosen.act(make)


def _dies(pipeline: Pipeline, accident: str) -> None:
    """Runs the pipeline with an accident that kills the JVM. Raises NotHitError."""
    try:
        error = pipeline.run(accident=accident, from_file=_HIT)
    except DriverDiedError:
        if pipeline.happened():
            return
        error = "it died by itself"
    raise NotHitError(f"the JVM was not killed: {error[-2000:]}")


def _well(error: str) -> None:
    if error:
        raise NotHitError(f"the pipeline does not run without an accident: {error[-2000:]}")


def _wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise NotHitError(f"not within {_DEADLINE_S} s: {what}")
        time.sleep(0.5)


def _outcome(pipeline: Pipeline, error: str) -> Outcome:
    found = pipeline.counts()
    return Outcome(len(pipeline.given), found["doubled"], found["missing"], error)


def _condition(error: str) -> str:
    """The name of the error, found heuristically in a text with a stack trace."""
    found = re.search(r"\b(?:ReplayMismatch|ProducerFenced|TxnConflict)Error\b", error) or re.search(
        r"\b[A-Z]\w+(?:Error|Exception)\b", error
    )
    if found:
        return found[0]
    return error if re.fullmatch(r"\w+", error) else "error"
