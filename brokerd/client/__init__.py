"""Client side of the protocol, shared by the sink, the source and the command line.

    broker_client.py      asynchronous client: routes calls to any node, a partition's leader or the coordinator; retries
    connection.py         gRPC connection to one node; detection of silent nodes
    security.py           TLS and tokens: authenticates the client and the broker
    response_checks.py    validation of a broker's responses
    fetching.py           reads ranges of partitions: positions and fetch streams
    columns.py            record batches as Arrow columns with offsets
    metadata.py           nodes and topics; choice of the node to ask
    topics.py             calls about topics
    offsets.py            calls about offsets (bounds.py: the syntax users write them in)
    groups.py             calls about groups
    transactions.py       calls about transactions and producer ids
    blocking.py           blocking versions of all calls, and the event loop thread that makes them
    produce_transport.py  the producer core's network interface
    leases.py             caches clients, and the sink's producers, across the tasks of a Spark worker

Independent of Spark. Only this package, wire, server, coordination and testing import grpc.
"""

from brokerd import wire as wire  # before gRPC: see there
