"""A program without Spark, run in the environment of the attacked system. Arguments: the system, its address, and one of

copy SOURCE TARGET GROUP  copies a topic in transactions that include the group's offsets, from `earliest` if the group has none,
                          until the first error. Prints the number of records of each transaction
write TARGET FIRST UNTIL  writes these numbers in one transaction, with the transactional id TARGET. Waits for a line on standard
                          input before it begins, and for another before it commits; prints "written", then "committed"
offsets SOURCE GROUP      prints how many partitions have a committed offset of the group

An error is printed as a line with its name.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from typing import Any

PARTITIONS = 4


def say(text: object) -> None:
    """Prints a line for the parent process."""
    print(text, flush=True)


class Program(ABC):
    """The program (see above) with the clients of one system."""

    errors: Any  # the base class of the clients' errors

    @abstractmethod
    def name_of(self, error: Exception) -> str:
        """The error's name for the table."""

    @abstractmethod
    def copy(self, source: str, target: str, group: str) -> None:
        """Copies one topic to another."""

    @abstractmethod
    def write(self, target: str, first: str, until: str) -> None:
        """Writes one transaction."""

    @abstractmethod
    def offsets(self, source: str, group: str) -> None:
        """Prints how many partitions have a committed offset."""


class Brokerd(Program):
    """The program with brokerd's clients."""

    def __init__(self, address: str) -> None:
        self._brokerd: Any = importlib.import_module("brokerd")
        self._common = {"bootstrap.servers": address}
        errors: Any = importlib.import_module("brokerd.errors")
        self.errors, self._unreachable = errors.BrokerdError, errors.BrokerUnreachableError

    def name_of(self, error: Exception) -> str:
        return type(error).__name__

    def copy(self, source: str, target: str, group: str) -> None:
        settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = self._brokerd.Consumer({**self._common, **settings})
        with consumer, self._brokerd.Producer({**self._common, "transactional.id": group}) as producer:
            consumer.assign([(source, number) for number in range(PARTITIONS)])
            while True:
                try:
                    records = consumer.poll(timeout_ms=1_000)
                except self._unreachable:  # after a suspension; the next call retries
                    continue
                if records:
                    with producer.transaction() as transaction:
                        transaction.send_offsets({tp: consumer.position(tp) for tp in consumer.assignment()}, consumer)
                        for record in records:
                            producer.send(target, key=record.key, value=record.value)
                    say(len(records))

    def write(self, target: str, first: str, until: str) -> None:
        sys.stdin.readline()
        with self._brokerd.Producer({**self._common, "transactional.id": target}) as producer:
            with producer.transaction():
                for number in range(int(first), int(until)):
                    producer.send(target, value=b"%d" % number)
                producer.flush()
                say("written")
                sys.stdin.readline()
            say("committed")

    def offsets(self, source: str, group: str) -> None:
        with self._brokerd.Consumer({**self._common, "group.id": group}) as consumer:
            committed = consumer.committed([self._brokerd.TopicPartition(source, number) for number in range(PARTITIONS)])
            say(sum(offset is not None for offset in committed.values()))


class Kafka(Program):
    """The program with confluent_kafka, after its example eos-transactions.py."""

    def __init__(self, address: str) -> None:
        self._kafka: Any = importlib.import_module("confluent_kafka")
        self._common = {"bootstrap.servers": address}
        self.errors = self._kafka.KafkaException

    def name_of(self, error: Exception) -> str:
        return str(error.args[0].name())

    def copy(self, source: str, target: str, group: str) -> None:
        consumer = self._consumer(group)
        producer = self._kafka.Producer({**self._common, "transactional.id": group})
        producer.init_transactions()
        consumer.subscribe([source])
        while True:
            records = [record for record in consumer.consume(500, timeout=1) if record.error() is None]
            if records:
                producer.begin_transaction()
                for record in records:
                    producer.produce(target, key=record.key(), value=record.value())
                offsets = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
                producer.commit_transaction()
                say(len(records))

    def write(self, target: str, first: str, until: str) -> None:
        sys.stdin.readline()
        producer = self._kafka.Producer({**self._common, "transactional.id": target})
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(int(first), int(until)):
            producer.produce(target, value=b"%d" % number)
        producer.flush()
        say("written")
        sys.stdin.readline()
        while True:
            try:
                producer.commit_transaction()
                break
            except self._kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
        say("committed")

    def offsets(self, source: str, group: str) -> None:
        partitions = [self._kafka.TopicPartition(source, number) for number in range(PARTITIONS)]
        say(sum(one.offset >= 0 for one in self._consumer(group).committed(partitions)))

    def _consumer(self, group: str) -> Any:
        settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
        return self._kafka.Consumer({**self._common, **settings})


def main(system: str, address: str, do: str, *arguments: str) -> None:
    """Runs one command to its end."""
    program = Kafka(address) if system == "kafka" else Brokerd(address)
    try:
        getattr(program, do)(*arguments)
    except program.errors as error:
        print(error, file=sys.stderr)
        say(program.name_of(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
