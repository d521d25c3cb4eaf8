"""Client side of the protocol, shared by the sink, the source and the command line.

    broker_client.py      which node answers what: any, a partition's leader, the coordinator; retries; asynchronous
    connection.py         a connection to one node over gRPC; notices nodes that hang
    security.py           TLS and tokens: authenticates the client and the broker
    response_checks.py    checks of a broker's responses
    fetching.py           reads ranges of partitions: positions and fetch streams
    columns.py            batches as columns with offsets
    metadata.py           nodes and topics; which node to ask
    topics.py             calls about topics
    offsets.py            calls about offsets (bounds.py: the syntax users write them in)
    groups.py             calls about groups
    transactions.py       calls about transactions and producer ids
    blocking.py           all calls for blocking code, and the event loop thread that makes them
    produce_transport.py  the producer core's network interface
    leases.py             caches clients, and the sink's producers, across the tasks of a Spark worker

Independent of Spark. Only this package, wire, server and testing import grpc.
"""

from brokerd import wire as wire  # before gRPC: see there
