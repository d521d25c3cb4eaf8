"""The PySpark sink, installed as brokerd.sink.

    options.py        the options of .option(...), parsed into a frozen SinkOptions; the columns that a DataFrame may have
    writer.py         Spark's writers, on the driver and in each task
    task.py           one task's write, as a member of the transaction, with a reused producer; a DataFrame's columns as records
    foreach_batch.py  append_to: small micro-batches of foreachBatch, written by the driver
    transaction.py    the transaction of a task's rows: ids, commit messages, the driver's commit or abort of the whole write

The producer is in brokerd/producer; this package does not touch the wire format or import brokerd.datasource.
"""
