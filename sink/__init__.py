"""The PySpark sink, installed as brokerd.sink.

    options.py          the options of .option(...), parsed into a frozen SinkOptions; the columns that a DataFrame may have
    columns.py          the conversion of a DataFrame's columns to records
    transaction_ids.py  the transaction that a task's rows belong to
    writer.py           Spark's writers, on the driver and in each task
    task.py             one task's write, as a member of the transaction, with a reused producer
    foreach_batch.py    append_to: small micro-batches of foreachBatch, written by the driver
    commit.py           commit messages of tasks, and the driver's commit or abort of the whole write

The producer is in brokerd/producer; this package does not touch the wire format or import brokerd.datasource.
"""
