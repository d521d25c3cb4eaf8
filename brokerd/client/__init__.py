"""Talking to a broker: shared by sink, datasource and the command line.

    io/                   one gRPC channel, a loop in a thread, TLS and tokens, errors from status codes, when to try again
    consumer/             ranges of partitions read at full speed: positions, fetch streams, batches as columns with offsets
    broker_client.py      every unary call, retried; asynchronous (blocking.py: for code that blocks)
    metadata.py           nodes and topics as values
    topics.py             what describe, create and delete speak of, as values
    produce_transport.py  what the producer core asks of the network
    leases.py             clients, and the sink's producers, that outlive the tasks of Spark's workers

Nothing here knows Spark, and only this package, wire and server import grpc.
"""
