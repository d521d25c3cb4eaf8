"""Commands of the producer's scenarios (tests/model/scenarios/producer), run on a Simulation.

    settings NAME=VALUE ...     producer settings, first; a record takes 100 bytes, two nodes lead three partitions
    connect                     everything requested is answered: metadata, producer id, streams
    append t-0 3                the application sends three records, or waits for memory
    begin | commit              joins a transaction (version 1, then 2, ...); commits it if every record has its result
    abort member                aborts it, whatever is under way
    flush | close | abort       the application's other calls
    wait 20                     milliseconds pass
    wake                        time passes until the producer's next timer
    metadata [lost]             the broker's metadata arrives (or no response does)
    producer-id [lost]          a producer id, or a raised epoch
    heartbeat [lost]            the member's heartbeat is answered
    open                        the stream requested last opens
    broker reads                the next request is handled
    broker refuses NAME         ... its first batch fails with this error
    broker fails NAME           ... its first batch is written, the response is an error all the same
    broker expires members      it aborts all of them
    broker forgets t-0          it has lost the partition's producer state
    broker fences t-0           a newer epoch of the producer has written there
    broker loses t-0            its newest batch there is gone, as after a lost disk
    broker throttles 100        its next response refuses and throttles (ms)
    broker takes 1 t-0          the largest batch it accepts, in records
    answer [twice]              the oldest response under way arrives
    lose request | lose answer  the oldest one never arrives
    swap answers                the oldest response arrives last
    cut                         the stream breaks; requests under way may still arrive
    leader t-0 node 1           another node leads, or `none`
    heal                        no more faults; everything pending completes
    log t-0 | state             the log's records; what the producer still holds

Stream commands apply to the last stream; `on 1 answer` to stream 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.streams import FetchMetadata, RequestProducerId, SendHeartbeat
from tests.support.producer_simulation import NO_LIMIT, TOPIC, Simulation
from tests.support.producer_trace import numbers_text
from tests.support.simulated_network import ALL_ERRORS

SEED = 1
FAULTS = {type(error).__name__: number for number, error in enumerate(ALL_ERRORS)}


class Script:
    """One scenario, command by command."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        self._stream_number: int | None = None  # None = the last
        self._lines: list[str] = []  # in addition to the trace

    def do(self, command: str) -> list[str]:
        """Executes a command and returns the lines it led to. Raises LookupError, ValueError for an unknown one."""
        words = command.split()
        if words[0] == "settings":
            self._begin(words[1:])
            return self._take()
        self._stream_number = None
        if words[0] == "on":
            self._stream_number, words = int(words[1]), words[2:]
        self._find(words)
        lines = self._take()
        while True:
            self.simulation.step()
            more = self._take()
            if not more:
                return lines
            lines += more

    @property
    def simulation(self) -> Simulation:
        """The simulation that the commands act on."""
        if self._simulation is None:
            self._begin([])
        assert self._simulation is not None
        return self._simulation

    def _begin(self, words: list[str]) -> None:
        assert self._simulation is None, "settings come first, once"
        settings: dict[str, Any] = dict(word.replace("~", " ").split("=", 1) for word in words)
        self._simulation = Simulation(SEED, trace=[], **settings)

    def _take(self) -> list[str]:
        trace = self.simulation.trace
        assert trace is not None
        lines = trace + self._lines
        trace.clear()
        self._lines = []
        return lines

    def _find(self, words: list[str]) -> None:
        """Calls the method of the longest matching command prefix."""
        for count in (2, 1):
            method: Callable[..., None] | None = getattr(self, "_do_" + "_".join(words[:count]).replace("-", "_"), None)
            if method is not None:
                method(*words[count:])
                return
        raise LookupError(f"there is no command '{' '.join(words)}'")

    # --- the application and time

    def _do_append(self, tp: str, count: str) -> None:
        waiting = len(self.simulation.waiting)
        self.simulation.do_append(_partition(tp), int(count))
        if len(self.simulation.waiting) > waiting:
            self._lines.append(f"{count} records of {tp} wait for memory")

    def _do_begin(self) -> None:
        self.simulation.do_begin()

    def _do_commit(self) -> None:
        membership, error = self.simulation.membership, self.simulation.core.identity.error
        assert membership is not None, "there is no member"
        self.simulation.do_commit()
        if self.simulation.membership is None:
            self._lines.append(self._decided(membership, f"its member failed: {type(error).__name__}" if error else ""))

    def _do_abort_member(self) -> None:
        membership = self.simulation.membership
        assert membership is not None, "there is no member"
        self.simulation.do_abort_member()
        self._lines.append(self._decided(membership, "aborted"))

    def _decided(self, membership: Membership, otherwise: str) -> str:
        known = self.simulation.transactions.ids.get(membership.transactional_id)
        is_committed = known is not None and known.last_version == membership.txn_version
        return f"transaction {membership.txn_version} is " + ("committed" if is_committed else f"not committed, {otherwise}")

    def _do_flush(self) -> None:
        self.simulation.do_flush()

    def _do_abort(self) -> None:
        self.simulation.do_abort()

    def _do_close(self) -> None:
        self.simulation.core.accumulator.is_closed = True

    def _do_wait(self, ms: str) -> None:
        self.simulation.do_tick(int(ms))

    def _do_wake(self) -> None:
        simulation = self.simulation
        if simulation.next_ms >= NEVER_MS:
            self._lines.append("it does not want to be woken")
            return
        simulation.note("{} ms later:", simulation.next_ms - simulation.now_ms)
        simulation.now_ms = simulation.next_ms

    # --- calls and streams

    def _do_connect(self) -> None:
        simulation = self.simulation
        while simulation.calls or any(not (stream.is_open or stream.is_broken) for stream in simulation.streams):
            for k in range(len(simulation.streams)):
                simulation.do_open(k)
            if simulation.calls:
                simulation.do_call(0)
            simulation.step()

    def _do_metadata(self, what: str = "") -> None:
        self._call(FetchMetadata, what)

    def _do_producer_id(self, what: str = "") -> None:
        self._call(RequestProducerId, what)

    def _do_heartbeat(self, what: str = "") -> None:
        self._call(SendHeartbeat, what)

    def _call(self, kind: type, what: str) -> None:
        calls = self.simulation.calls
        (number,) = (number for number, call in enumerate(calls) if isinstance(call, kind))
        self.simulation.do_call(number, _flag(what, "lost") is False)

    def _stream(self) -> int:
        """The index of the command's stream."""
        simulation = self.simulation
        simulation.stream(0)  # drops finished streams
        numbers = [stream.hello.incarnation for stream in simulation.streams]
        return numbers.index(self._stream_number) if self._stream_number is not None else len(numbers) - 1

    def _do_open(self) -> None:
        self.simulation.do_open(self._stream())

    def _do_cut(self) -> None:
        self.simulation.do_cut(self._stream())

    def _do_answer(self, what: str = "") -> None:
        self.simulation.do_answer(self._stream(), 2 if _flag(what, "twice") else 1)

    def _do_lose_request(self) -> None:
        self.simulation.do_drop_request(self._stream())

    def _do_lose_answer(self) -> None:
        self.simulation.do_drop_answer(self._stream())

    def _do_swap_answers(self) -> None:
        answers = self.simulation.streams[self._stream()].answers
        answers.append(answers.popleft())

    # --- the broker

    def _do_broker_reads(self) -> None:
        self.simulation.do_request(self._stream())

    def _do_broker_refuses(self, name: str) -> None:
        self.simulation.do_request(self._stream(), FAULTS[name], False)

    def _do_broker_fails(self, name: str) -> None:
        self.simulation.do_request(self._stream(), FAULTS[name], True)

    def _do_broker_expires(self, _members: str) -> None:
        self.simulation.do_expire_members()

    def _do_broker_forgets(self, tp: str) -> None:
        self.simulation.do_forget(_partition(tp))

    def _do_broker_fences(self, tp: str) -> None:
        for entry in self.simulation.log[_partition(tp)].producers.values():
            entry.epoch += 1

    def _do_broker_loses(self, tp: str) -> None:
        log = self.simulation.log[_partition(tp)]
        _, _, offset = max((entry.batches.pop() for entry in log.producers.values()), key=lambda batch: batch[2])
        self._lines.append(f"gone: {numbers_text(log.records[offset:])}")
        del log.records[offset:]

    def _do_broker_throttles(self, ms: str) -> None:
        self.simulation.do_throttle(self._stream(), int(ms))

    def _do_broker_takes(self, count: str, tp: str) -> None:
        self.simulation.do_limit(_partition(tp), NO_LIMIT if count == "all" else int(count))

    def _do_leader(self, tp: str, *node: str) -> None:
        self.simulation.do_leader(_partition(tp), -1 if node == ("none",) else int(node[1]))

    def _do_heal(self) -> None:
        self.simulation.heal()
        self.simulation.check()

    # --- queries

    def _do_log(self, tp: str) -> None:
        self._lines.append(f"{tp}: {numbers_text(self.simulation.log[_partition(tp)].records)}")

    def _do_state(self) -> None:
        core = self.simulation.core
        facts = [f"{core.streams.requests_in_flight} requests in flight", f"{core.pool.used_bytes} bytes held"]
        if core.identity.is_idempotent:
            producer_id, epoch = core.identity.granted
            facts += [f"producer {producer_id}", f"epoch {epoch}"]
        for batches in self.simulation.flushes:
            facts.append("flush done" if all(batch.is_notified for batch in batches) else "flush waiting")
        if core.fatal_error is not None:
            facts.append(f"failed for good: {core.fatal_error}")
        self._lines.append(", ".join(facts))


def _partition(tp: str) -> int:
    topic, _, number = tp.rpartition("-")
    assert topic == TOPIC, f"the topic is {TOPIC}, not {topic}"
    return int(number)


def _flag(word: str, known: str) -> bool:
    """True for the word, False for none. Raises ValueError for another word."""
    if word not in ("", known):
        raise ValueError(f"'{word}' where only '{known}' may stand")
    return bool(word)
