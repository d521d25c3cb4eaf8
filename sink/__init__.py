"""The PySpark sink, installed as brokerd.sink.

    options.py   the options of .option(...), parsed into a frozen SinkOptions
    columns.py   the columns that a DataFrame may have, and their conversion to records
    producers.py producers that are reused between tasks
    writer.py    Spark's writers: pass rows to the producer, return counts

The producer itself is brokerd/producer; this package does not know the wire, and does not import brokerd.datasource.
"""
