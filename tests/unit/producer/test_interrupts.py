"""A signal in the main thread may interrupt a call of the producer at any point. Afterwards four properties must hold: buffer
memory is accounted for, each row is sent whole or not at all, no lock stays held, and every future and accepted record completes.

The tests interrupt each call at every STRIDE-th point of producer/ and client/ where Python runs signal handlers, and then check
the four properties. One test interrupts several sending threads at random.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import BrokerdError, Fate, InvalidProducerEpochError
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.interrupts import Struck, strike, strike_thread
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of

# Python swallows an exception raised in a generator that is being closed, and warns.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
STRIDE = max(1, 4 // TEST_SCALE)  # every point from TEST_SCALE 4 on
STRIKES = 40 * TEST_SCALE
THREADS = 3


class Witness:
    """Sends through a producer, and knows which records the broker must have and which it may have."""

    def __init__(self, broker: BrokerDouble, producer: Producer) -> None:
        self.broker = broker
        self.producer = producer
        self.futures: list[tuple[Any, list[int]]] = []
        self.told: list[int] = []
        self._numbers = iter(range(10**9))

    def send(self, **more: Any) -> Any:
        """Sends a record whose key, header and value hold the same number."""
        number = next(self._numbers)
        text = b"%08d" % number
        future = self.producer.send("t", b"v" + text, key=b"k" + text, headers={"h": text}, **more)
        self.futures.append((future, [number]))
        return future

    def send_batch(self, count: int = 5) -> Any:
        """Sends `count` rows."""
        numbers = [next(self._numbers) for _ in range(count)]
        texts = [b"%08d" % number for number in numbers]
        # With explicit types: to infer one, pyarrow imports, and an interrupted import keeps its lock.
        columns = [pa.array([letter + text for text in texts], pa.binary()) for letter in (b"k", b"v")]
        rows = pa.RecordBatch.from_arrays(columns, ["key", "value"])
        future = self.producer.send_batch("t", rows)
        self.futures.append((future, numbers))
        return future

    def check(self, where: str) -> None:
        """Checks the four properties."""
        with ThreadPoolExecutor(1) as others:
            others.submit(self.send).result(DEADLINE_S)  # no lock stays held: another thread can send
        self.producer.flush(DEADLINE_S)
        metrics = self.producer.metrics()
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"], where
        assert self.producer.first_error is None, where
        rows = [row for partition in range(4) for row in self.broker.records("t", partition)]
        written = [int(row["value"][1:]) for row in rows]
        assert len(written) == len(set(written)), f"{where}: a row is there twice"
        for row in rows:
            assert row["key"][1:] == row["value"][1:], f"{where}: half a row"
            assert row["headers"] is None or row["headers"][0]["value"] == row["value"][1:], f"{where}: half a row"
        for future, numbers in self.futures:
            assert future.done(), where
            future.result(0)
            assert set(numbers) <= set(written), f"{where}: a record that was taken is gone"

    def forget(self) -> None:
        """Drops futures and records that were checked."""
        self.futures.clear()
        for partition in range(4):
            self.broker.topics["t"].partitions[partition].records.clear()


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(4)


@pytest.fixture
def witness(broker: BrokerDouble) -> Iterator[Witness]:
    with producer_of(broker, linger_ms=5) as producer:
        yield Witness(broker, producer)


def sweep(witness: Witness, action: Callable[[], object]) -> int:
    """Strikes `action` at every STRIDE-th point. Returns the first point past its end."""
    at = 1
    while where := strike(action, at, is_signal=True):
        witness.check(where)
        witness.forget()
        at += STRIDE
    return at


def test_send_into_an_open_chunk(witness: Witness) -> None:
    def two() -> None:
        witness.send()
        witness.send(partition=1, timestamp=5)

    assert sweep(witness, two) > 100


def test_what_is_sent_after_an_interrupted_send_needs_no_flush(broker: BrokerDouble, witness: Witness) -> None:
    """The interrupted call may have been the one to wake the sender for a new chunk. The next call must wake it."""

    def is_written(text: bytes) -> bool:
        return any(text in broker.values("t", partition) for partition in range(4))

    witness.send().result(DEADLINE_S)
    at = 1
    while strike(lambda: witness.producer.send("t", b"struck"), at, is_signal=True):
        text = b"after the strike at %d" % at
        witness.producer.send("t", text)
        wait_until(lambda text=text: is_written(text), what="a record that nobody flushes is written")  # type: ignore[misc]
        at += STRIDE
    assert at > 20


@pytest.fixture(params=["in a chunk", "handed over"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How rows of `send_batch` reach the sender: small batches as entries of a chunk, others handed over."""
    if request.param == "handed over":
        monkeypatch.setattr("brokerd.producer.intake.SMALL_BATCH_BYTES", 0)


@pytest.mark.usefixtures("way")
def test_send_batch(witness: Witness) -> None:
    def mixed() -> None:
        witness.send_batch()  # nothing is staged yet, so a hand-over does not wait for the sender
        witness.send()
        witness.send_batch()

    assert sweep(witness, mixed) > 100


def test_flush_and_results(witness: Witness) -> None:
    def all_of_it() -> None:
        one, many = witness.send(), witness.send_batch()
        one.add_done_callback(lambda future: witness.told.append(future.result(0).offset))
        witness.producer.flush(DEADLINE_S)
        one.result(DEADLINE_S)
        many.exception(DEADLINE_S)
        witness.send().result(DEADLINE_S)

    assert sweep(witness, all_of_it) > 100


def test_close(broker: BrokerDouble) -> None:
    at = 1
    where = "-"
    while where:
        producer = producer_of(broker)
        witness = Witness(broker, producer)
        witness.send()
        where = strike(producer.close, at, is_signal=True)
        producer.close(DEADLINE_S)
        for future, _ in witness.futures:
            future.result(0)
        metrics = producer.metrics()
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"], where
        witness.forget()
        at += STRIDE
    assert at > 20


@pytest.mark.parametrize(("memory_bytes", "counts"), [(2_000, (40, 40)), (10_000, (100, 100, 10, 10, 10))])
def test_waiting_for_memory(broker: BrokerDouble, memory_bytes: int, counts: tuple[int, ...]) -> None:
    """A call interrupted while it waits for memory keeps none. Covers batches handed over, and small ones."""
    with producer_of(broker, buffer_memory=memory_bytes, linger_ms=5) as producer:
        witness = Witness(broker, producer)

        def more_than_fits() -> None:
            for count in counts:
                witness.send_batch(count)
            witness.send()

        assert sweep(witness, more_than_fits) > 100


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, Struck])
def test_a_callback_that_raises_what_is_no_exception_stops_nothing(broker: BrokerDouble, end: type[BaseException]) -> None:
    def call_back(_future: object) -> None:
        raise end

    with producer_of(broker, linger_ms=60_000, delivery_timeout_ms=100_000) as producer:
        first, second = (
            producer.send("t", b"x", partition=0),
            producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [b"y"]})),
        )
        first.add_done_callback(call_back)
        second.add_done_callback(call_back)
        producer.flush(DEADLINE_S)
        third = producer.send("t", b"z", partition=0)
        producer.flush(DEADLINE_S)
        assert third.result(0).offset >= 1


def test_a_callback_sends_and_cannot_wait_for_itself(broker: BrokerDouble) -> None:
    told: list[Any] = []

    def call_back(future: Any) -> None:
        again = producer.send("t", b"again", partition=0)
        told.append(again)
        try:
            again.result()
        except RuntimeError as error:
            told.append(str(error))

    with producer_of(broker, linger_ms=60_000, delivery_timeout_ms=100_000) as producer:
        producer.send("t", b"x", partition=0).add_done_callback(call_back)
        producer.flush(DEADLINE_S)
        producer.flush(DEADLINE_S)
        assert told[0].result(0).offset == 1
    assert told[1] == "a callback cannot wait for its producer: it runs in the thread that sends"


def traceback_length(error: BaseException) -> int:
    return sum(1 for _ in traceback.walk_tb(error.__traceback__))


def test_what_is_raised_again_and_again_grows_no_traceback(broker: BrokerDouble) -> None:
    broker.faults.append(Fault(error=InvalidProducerEpochError("fenced", fate=Fate.NOT_APPENDED)))
    producer = producer_of(broker)
    future = producer.send("t", b"x")
    producer.flush(DEADLINE_S)
    closed = producer_of(broker)
    closed.close(DEADLINE_S)
    for ask in (future.result, lambda: producer.send("t", b"x"), lambda: closed.send("t", b"x")):
        raised: list[BrokerdError] = []
        for _ in range(20):
            with pytest.raises(BrokerdError) as caught:
                ask()
            raised.append(caught.value)
        assert traceback_length(raised[-1]) == traceback_length(raised[1])
        causes = [error.__cause__ for error in raised]
        assert all(cause is None or cause.__traceback__ is None for cause in causes)
        assert len({type(error) for error in raised}) == len({str(error) for error in raised}) == 1
    assert isinstance(future.exception(0), InvalidProducerEpochError)
    assert future.exception(0).fate is Fate.NOT_APPENDED  # type: ignore[union-attr]
    producer.close(DEADLINE_S)


IMPORTS = """
import sys
import pyarrow as pa
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble
from tests.support.wait import DEADLINE_S

class Finder:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("numpy", "pandas", "pyarrow", "brokerd"):
            print(name)

double = BrokerDouble()
double.create_topic("t", 4)
rows = pa.RecordBatch.from_arrays([pa.array([b"x"] * 100, pa.binary())], ["value"])
with Producer({}, transport_factory=double.transport) as producer:
    sys.meta_path.insert(0, Finder())
    producer.send("t", b"x", key=b"k", headers={"a": b"b"}, timestamp=5).result(DEADLINE_S)
    for number in range(50):
        producer.send("t", b"x", key=b"%d" % number)
    producer.flush(DEADLINE_S)
    producer.send_batch("t", rows).outcomes(DEADLINE_S)
    producer.metrics()
"""


def test_a_producer_that_is_made_imports_nothing() -> None:
    """A thread interrupted in an import keeps the module's import lock, and the sender would wait for it forever."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.usefixtures("way")
def test_strikes_from_another_thread_while_several_send(broker: BrokerDouble) -> None:
    rng = random.Random(1)
    with producer_of(broker, linger_ms=1, buffer_memory=20_000) as producer:
        witnesses = [Witness(broker, producer) for _ in range(THREADS)]
        for name, witness in enumerate(witnesses):
            witness._numbers = iter(range(name * 10**7, (name + 1) * 10**7))
        is_over = threading.Event()
        struck = [0] * THREADS
        rounds = [0] * THREADS

        def work(name: int) -> None:
            witness = witnesses[name]
            while not is_over.is_set():
                try:
                    while not is_over.is_set():
                        rounds[name] += 1
                        witness.send()
                        if len(witness.futures) % 50 == 0:
                            witness.send_batch(20)
                        if len(witness.futures) % 200 == 0:
                            witness.futures[-1][0].result(DEADLINE_S)
                except Struck:
                    struck[name] += 1

        def wait_for_rounds(name: int, more: int) -> None:
            """Waits until the thread has begun `more` further rounds. By the second, an earlier strike has been raised, and the
            thread is back in the `try`, which catches the next one."""
            until = rounds[name] + more
            wait_until(lambda: rounds[name] >= until, what=f"round {until} of thread {name}")

        threads = [threading.Thread(target=work, args=(name,)) for name in range(THREADS)]
        for thread in threads:
            thread.start()
        for _ in range(STRIKES):
            name = rng.randrange(THREADS)
            wait_for_rounds(name, rng.randint(2, 20))
            strike_thread(threads[name].ident or 0)
        for name in range(THREADS):
            wait_for_rounds(name, 2)
        is_over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a lock is lost"
        assert sum(struck) > STRIKES // 2
        for witness in witnesses:
            witness.check("at random")
