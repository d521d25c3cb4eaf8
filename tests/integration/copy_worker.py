"""A program that copies a topic exactly once: it reads, and writes in transactions that include its positions. It runs until it is
killed; failures are expected."""

from __future__ import annotations

import sys

from brokerd import Consumer, Producer
from brokerd.errors import BrokerdError

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}


def main(address: str, transactional_id: str, partitions: int) -> None:
    common = {"bootstrap.servers": address, **QUICK}
    settings = {"group.id": "copy", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    ids = {"transactional.id": transactional_id, "linger.ms": 0, "transaction.timeout.ms": 60_000}
    with Consumer({**common, **settings}) as consumer, Producer({**common, **ids}) as producer:
        consumer.assign([("in", number) for number in range(partitions)])
        while True:
            try:
                records = consumer.poll(timeout_ms=200, max_records=7)
                if not records:
                    continue
                with producer.transaction() as transaction:
                    transaction.send_offsets({tp: consumer.position(tp) for tp in consumer.assignment()}, consumer)
                    for record in records:
                        producer.send("out", record.value)
            except BrokerdError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
