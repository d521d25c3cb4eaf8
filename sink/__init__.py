"""The PySpark sink: installed as brokerd.sink.

    options.py   what may be written behind .option(...), parsed into a frozen SinkOptions
    columns.py   which columns a DataFrame may bring, and how they become records
    producers.py producers that outlive tasks
    writer.py    Spark's writers: rows to the producer, counts back

The producer itself is brokerd/producer; nothing here knows the wire. Nothing here imports brokerd.datasource.
"""
