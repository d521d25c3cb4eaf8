"""The PySpark source and Spark's single entry point, installed as brokerd.datasource.

    source.py            BrokerdDataSource: name, schema, readers, writers; only wiring
    options.py           parses the options of .option(...) into a frozen SourceOptions
    patterns.py          translates subscribePattern from Java's regular expressions
    schema.py            the source's columns as Spark and Arrow types
    offsets.py           offsets in the format of Spark's checkpoint
    bounds.py            parses the starting* and ending* options
    where.py             pure: parses the option where, and applies it to partitions, ranges and rows
    planning.py          pure: the offsets that a batch covers, its split over tasks, lost records
    offset_reader.py     fetches topics and offsets from the broker; warns of unknown names
    batch_reader.py      spark.read
    stream_reader.py     spark.readStream; commits its positions as a group's offsets
    sail.py              the source for Sail, PySpark without Java
    partition_reader.py  fetches ranges of offsets, usually in tasks; yields Arrow batches

Only source.py imports brokerd.sink. Spark finds the format through the package pyspark_brokerd/ beside this one.
"""
