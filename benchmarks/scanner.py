"""A consumer that reads as fast as it can, in a process of its own: `python -m benchmarks.scanner HOST:PORT TOPIC`.

Each line of its input is a JSON list of [partition, start offset, end offset]; a line of output tells seconds, rows and bytes.
"""

from __future__ import annotations

import json
import sys
import time

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching.fetcher import PartitionFetcher
from brokerd.client.fetching.positions import FetchRange
from brokerd.config.client import ClientConfig, ConsumerConfig
from brokerd.ids import TopicIdPartition


def main(address: str, topic: str) -> None:
    """Serves its input to the end."""
    with BlockingClient(ClientConfig(bootstrap_servers=address)) as client:
        topic_id = client.metadata([topic]).topics[topic].topic_id
        print("scanner ready", flush=True)
        for line in sys.stdin:
            ranges = [FetchRange(TopicIdPartition(topic_id, number), start, end) for number, start, end in json.loads(line)]
            start_s = time.perf_counter()
            rows = size_bytes = 0
            with PartitionFetcher(client, ranges, ConsumerConfig(bootstrap_servers=address)) as fetcher:
                for fetched in fetcher:
                    rows += len(fetched.offsets)
                    size_bytes += fetched.arrow_batch.nbytes
            print(json.dumps({"seconds": time.perf_counter() - start_s, "rows": rows, "bytes": size_bytes}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
