"""The PySpark source and Spark's single entry point, installed as brokerd.datasource.

    source.py            BrokerdDataSource: name, schema, readers, writers; only wiring
    options.py           the options of .option(...), parsed into a frozen SourceOptions (patterns.py: subscribePattern)
    schema.py            the source's columns, in Spark's and Arrow's form
    offsets.py           offsets as Spark's checkpoint keeps them
    bounds.py            where a read starts and ends, as users write it
    where.py             the option where, parsed into a RowFilter
    row_filter.py        pure: what a filter leaves of partitions, ranges and rows
    planning.py          what a batch covers, how it is split over tasks, what was lost
    offset_reader.py     asks the broker for topics and offsets; warns of names that it does not know
    batch_reader.py      spark.read
    stream_reader.py     spark.readStream
    progress.py          records how far a stream has read as a group's offsets
    sail.py              the source for Sail, PySpark without Java
    partition_reader.py  on executors: fetches one range, yields Arrow batches

Only source.py imports brokerd.sink. The package pyspark_brokerd/ beside this one has the name by which Spark finds the format.
"""
