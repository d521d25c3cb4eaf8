"""The PySpark source, and the one place that Spark sees: installed as brokerd.datasource.

    source.py            BrokerdDataSource: name, schema, readers, writers; only wiring
    options.py           what may be written behind .option(...), parsed into a frozen SourceOptions
                         (durations.py: 15m, patterns.py: subscribePattern)
    schema.py            the columns that come out, in Spark's and Arrow's form
    offsets.py           offsets as Spark's checkpoint keeps them
    bounds.py            where a read begins and ends, as users say it
    planning.py          pure: what a batch covers, how it is split over tasks, what was lost (data_loss.py: what that means)
    offset_reader.py     topics and offsets through the client
    batch_reader.py      spark.read
    stream_reader.py     spark.readStream
    partition_reader.py  on executors: fetch one range, yield Arrow batches

    pyspark_brokerd/     what Spark finds by its name, and with it the format

Nothing here but source.py imports brokerd.sink.
"""
