"""Client side of the protocol, shared by the sink, the source and the command line.

    io/                   one gRPC channel, a loop in a thread, TLS and tokens, errors from status codes, retries
    consumer/             reads ranges of partitions: positions, fetch streams, batches as columns with offsets
    broker_client.py      every unary call, with retries; asynchronous (blocking.py wraps it for blocking code)
    metadata.py           nodes and topics as values
    topics.py             values used by describe, create and delete
    transactions.py       values used by the calls of transactions (transaction_calls.py, coordinator.py)
    group_offsets.py      values used by the calls about groups (group_calls.py)
    produce_transport.py  the network as the producer core needs it
    leases.py             clients, and the sink's producers, that outlive the tasks of Spark's workers

Knows nothing of Spark. Only this package, wire and server import grpc.
"""

from brokerd import wire as wire  # before gRPC: see there
