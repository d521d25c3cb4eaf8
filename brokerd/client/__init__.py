"""Client side of the protocol, shared by the sink, the source and the command line.

    io/                   gRPC channels, TLS and tokens, errors from status codes
    fetching/             reads ranges of partitions: positions, fetch streams, batches as columns with offsets
    broker_client.py      the way to the nodes: connections, leaders, retries; asynchronous
    metadata.py           nodes and topics as values
    topics.py             calls about topics
    offsets.py            calls about offsets (bounds.py: as users write them)
    groups.py             calls about groups
    transactions.py       calls about transactions and producer ids (coordinator.py: those of a producer)
    blocking.py           all calls for blocking code, and the thread with the event loop that makes them
    produce_transport.py  the network as the producer core needs it
    leases.py             clients, and the sink's producers, that outlive the tasks of Spark's workers

Knows nothing of Spark. Only this package, wire and server import grpc.
"""

from brokerd import wire as wire  # before gRPC: see there
