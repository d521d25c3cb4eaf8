"""How fast it is, each figure beside its ceiling in the same run: `python -m benchmarks.run`, or `make bench`.

    run.py            options, order of the groups, output
    measure.py        warm-up, interleaved repeats, medians; tables and JSON
    environment.py    the broker as a child process, sampled from /proc; rows to send
    floor.py          ceiling of the clients: a bare gRPC server that takes, gives or fdatasyncs bytes, and its client
    clients.py        Producer and PartitionFetcher without Spark
    peers.py          Producer beside Python's Kafka clients; kafka_clients.py is their process
    spark_ceiling.py  ceiling of Spark: a sink that discards, a source that invents
    spark_io.py       Spark writing and reading, batch and AvailableNow
    parked.py         ten thousand fetches that wait on one daemon, and what wakes them
    faces.py          the clients of brokerd.aio beside the blocking ones
    raw.py            single requests on bare streams

Nothing here is shipped. Compare figures of one run only: machines differ, and so do the minutes of one machine.
"""
