"""Talking to a broker: shared by sink, datasource and the command line.

    retry.py              how long to wait, when to give up (pure)
    metadata.py           nodes and topics as values
    topics.py             what describe, create and delete speak of, as values
    offsets.py            offsets as values, and their requests
    security.py           TLS and tokens: who this client is, whom it trusts
    connection.py         one gRPC channel: unary calls, raw streams, status codes turned into errors
    broker_client.py      every unary call, retried; asynchronous
    fetch_stream.py       one fetch stream: requests and answers as values
    positions.py          how far a range is read, what of an answer belongs to it (pure)
    fetched.py            record batches as columns with offsets; aborted transactions left out (pure)
    fetcher.py            ranges read at full speed: the next fetch is in flight while the last is decoded
    produce_transport.py  what the producer core asks of the network
    producer.py           brokerd.Producer: the producer core over it
    loop_thread.py        an event loop in a thread of its own
    blocking.py           the client for code that blocks
    cache.py              one client per process and settings, for Spark's workers

Nothing here knows Spark, and only this package, wire and server import grpc.
"""
