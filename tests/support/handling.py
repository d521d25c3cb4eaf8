"""A group's process whose handlers run in threads and which kills itself while they run. Not a test.

    python -m tests.support.handling SERVERS PARTITIONS JOURNAL DIES_AT [IDS]

JOURNAL gets a line with key and value when a record begins (B) and ends (E). The process kills itself when its handlers begin the
DIES_AT-th record, whatever its other threads are doing; with 0 it ends cleanly once its standard input ends. IDS is the path of the
deduplication store."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from typing import Any

from brokerd import Consumer, ConsumerRecord

MAX_IN_FLIGHT = 50  # more are taken only after some are finished and written


def main() -> None:
    """See the module."""
    servers, partitions, journal, dies_at, *ids = sys.argv[1:]
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    numbers = itertools.count(1)

    def handle(record: ConsumerRecord) -> None:
        assert record.key is not None
        assert record.value is not None
        if next(numbers) == int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, b"B %s %s\n" % (record.key, record.value))
        os.write(file, b"E %s %s\n" % (record.key, record.value))

    settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 0}
    options: dict[str, Any] = {"dedup_header": "message-id", "dedup_path": ids[0]} if ids else {}
    with Consumer(settings) as consumer:

        def end_with_input() -> None:
            sys.stdin.read()
            consumer.close()

        if not int(dies_at):
            threading.Thread(target=end_with_input, daemon=True).start()
        consumer.assign([("t", int(partition)) for partition in partitions.split(",")])
        consumer.process(handle, workers=8, max_in_flight=MAX_IN_FLIGHT, **options)


if __name__ == "__main__":
    main()
