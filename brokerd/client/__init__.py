"""Client side of the protocol, shared by the sink, the source and the command line.

    io/                   gRPC channels, TLS and tokens, errors from status codes
    fetching/             reads ranges of partitions: positions, fetch streams, batches as columns with offsets
    broker_client.py      connections to the nodes, partition leaders, retries; asynchronous
    metadata.py           nodes and topics as values
    topics.py             calls about topics
    offsets.py            calls about offsets (bounds.py: the syntax users write them in)
    groups.py             calls about groups
    transactions.py       calls about transactions and producer ids (coordinator.py: those a producer makes)
    blocking.py           all calls for blocking code, and the event loop thread that makes them
    produce_transport.py  the producer core's network interface
    leases.py             caches clients, and the sink's producers, across the tasks of a Spark worker

Independent of Spark. Only this package, wire, server and testing import grpc.
"""

from brokerd import wire as wire  # before gRPC: see there
