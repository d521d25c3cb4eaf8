"""Benchmarks. `python -m benchmarks.run`, or `make bench`, measures each figure beside its ceiling in the same run.

    run.py            options, order of the groups, output
    measure.py        warm-up, interleaved repeats, medians; tables and JSON
    environment.py    the broker as a child process, sampled from /proc; rows to send
    floor.py          ceiling of the clients: a bare gRPC server that receives, sends or fdatasyncs bytes, and its client
    clients.py        Producer and PartitionFetcher without Spark
    peers.py          Producer and Consumer beside Python's Kafka clients; kafka_clients.py is their process
    spark_ceiling.py  ceiling of Spark: a sink that discards rows, a source that generates them
    spark_io.py       Spark writing and reading, batch and AvailableNow
    parked.py         ten thousand parked fetches on one broker, and their wake-up
    testing_broker.py the brokers of brokerd.testing
    raw.py            single requests on bare streams

Separate commands:

    faces.py          the clients of brokerd.aio beside the blocking ones
    producer_micro.py the producer alone
    source.py         reading through Spark
    first_row.py      from start() to a query's first row
    delivery.py       the cost of exactly once, and its parts
    many_transactions.py  many members and versions
    micro_batches.py  micro-batches of a few rows beside Kafka's (micro_batches_session.py: a Spark session of one peer)
    attacks.py        a client beside attackers (attackers.py, raw_http2.py)
    trace.py          the code that one record passes
    exactly_once/     attacks on exactly once through Spark

Not shipped. Compare figures of one run only: speed differs between machines, and from minute to minute.
"""
