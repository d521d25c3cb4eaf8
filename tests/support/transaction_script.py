"""Commands of the coordinator's scenarios (tests/model/scenarios/transaction), done on a Coordinator and nothing else.

init a 5 by e1 of r1                   task a asks to be a member of version 5, in execution e1 of run r1
wrote a 3 [to 1] [not durable]         it has three records in partition 0 (1)
commit 5 by e1 of r1: a=3 b=0 [rows 7] [other rows] [skipped]
                                       the driver's COMMIT, with the records that its members report, and rows read
markers                                the markers of what is prepared, and its completion
abort 5 by e1 of r1: a b               the driver's ABORT
heartbeat a 5 by e1 of r1              a sign of life
time 900000                            milliseconds pass
expire                                 executions end that were silent for too long
delete                                 the topic is deleted
restart                                the broker starts again, and reads its log
compact                                a state takes the place of the log
state                                  all that is known
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.errors import WireError
from brokerd.transaction.transactional_id import Progress
from brokerd.wire.v1.transaction_log_pb2 import CommitPrepared
from tests.support.transaction_bench import ID, EndRequest, Execution, TransactionBench, partition, totals

_OTHER_HASH = 9


class TransactionScript:
    """One scenario, command by command."""

    def __init__(self) -> None:
        self._bench = TransactionBench()
        self._lines: list[str] = []

    def do(self, command: str) -> list[str]:
        """Does a command; what it led to. Raises LookupError for one that there is not."""
        name, *words = command.split()
        method: Callable[..., None] | None = getattr(self, "_do_" + name, None)
        if method is None:
            raise LookupError(f"there is no command '{command}'")
        try:
            method(*words)
        except WireError as error:
            self._lines.append(f"{type(error).__name__}: {error.message}")
        lines, self._lines = self._lines, []
        return lines

    def _name(self, producer_id: int) -> str:
        return next(name for name, member in self._bench.known.items() if member.producer_id == producer_id)

    def _names(self, producer_ids: object) -> str:
        return " ".join(map(self._name, producer_ids)) or "nobody"  # type: ignore[call-overload]

    # --- requests

    def _do_init(self, who: str, *words: str) -> None:
        before = len(self._bench.log)
        member = self._bench.init(who, _execution(words))
        self._lines.append(f"producer {member.producer_id}" if len(self._bench.log) > before else f"again {member.producer_id}")

    def _do_wrote(self, who: str, records: str, *words: str) -> None:
        number = int(words[1]) if "to" in words else 0
        self._bench.wrote(who, int(records), partition(number), is_durable="not" not in words)

    def _end_request(self, words: tuple[str, ...]) -> EndRequest:
        members = {
            word.partition("=")[0]: int(word.partition("=")[2] or 0)
            for word in words[5:]
            if word in self._bench.known or "=" in word
        }
        rows = (
            int(words[words.index("rows") + 1])
            if "rows" in words and words[words.index("rows") - 1] != "other"
            else sum(members.values())
        )
        found = totals(rows, _OTHER_HASH) if "other" in words else totals(rows)
        return self._bench.end_request(_execution(words), members, found, skipped="skipped" in words)

    def _do_commit(self, *words: str) -> None:
        request = self._end_request(words)
        decided = self._bench.commit(request)
        last = self._bench.coordinator.states[ID].last
        assert last is not None, "a version is committed"
        if isinstance(decided, CommitPrepared):
            won, lost = decided.committed_producer_ids, decided.aborted_producer_ids
            self._lines.append(f"prepared; {self._names(won)} won, {self._names(lost)} lost")
        elif decided is Progress.UNFINISHED:
            self._lines.append(f"after the markers of version {last.txn_version}")
        else:
            known = last if last.txn_version == request.asked.txn_version else request.asked
            self._lines.append(f"done: {known.totals.rows} rows by execution {known.execution_id}")

    def _do_markers(self) -> None:
        for tp, record in self._bench.finish().items():
            won, lost = self._names(record.committed_producer_ids), self._names(record.aborted_producer_ids)
            self._lines.append(f"partition {tp.partition}: {won} committed, {lost} aborted")
        self._lines.append("complete")

    def _do_abort(self, *words: str) -> None:
        self._lines.append(f"{self._names(self._bench.abort(self._end_request(words)))} aborted")

    def _do_heartbeat(self, who: str, *words: str) -> None:
        member_id = self._bench.known[who].member_id
        self._bench.heartbeat(_execution(words), member_id)

    # --- the world

    def _do_time(self, ms: str) -> None:
        self._bench.now_ms += int(ms)

    def _do_expire(self) -> None:
        self._lines.append(f"{self._names(self._bench.expire())} expired")

    def _do_delete(self) -> None:
        self._bench.deleted = set(self._bench.data)
        self._bench.data = {}

    def _do_restart(self) -> None:
        self._bench.restart()
        self._lines.append("loaded")

    def _do_compact(self) -> None:
        before = len(self._bench.log)
        self._bench.compact()
        self._lines.append(f"{len(self._bench.log)} records instead of {before}")

    def _do_state(self) -> None:
        for name, state in self._bench.coordinator.states.items():
            last = "nothing" if state.last is None else f"version {state.last.txn_version} with {state.last.totals.rows} rows"
            prepared = ", prepared" if state.is_prepared else ""
            self._lines.append(f"{name}: committed {last}{prepared}; open {self._names(state.members)}")


def _execution(words: tuple[str, ...]) -> Execution:
    """`5 by e1 of r1` at the beginning."""
    return Execution(int(words[0]), words[2], words[4].rstrip(":"))
