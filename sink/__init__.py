"""The PySpark sink, installed as brokerd.sink.

    options.py          the options of .option(...), parsed into a frozen SinkOptions
    columns.py          the columns that a DataFrame may have, and their conversion to records
    transaction_ids.py  which transaction a task's rows belong to
    writer.py           Spark's writers: on the driver, and in each task
    task.py             one task's write, as a member of the transaction, by a producer that is reused
    commit.py           what a task tells the driver, and its decision: what the tasks wrote counts, all of it or nothing

The producer itself is brokerd/producer; this package does not know the wire, and does not import brokerd.datasource.
"""
