"""The consumer of plain Python. In the order of a record's way:

fetching.py     where partitions begin (resolution.py), and their records into the buffer
core/           positions, records, what was fetched and not handed over: pure
base.py         a consumer's state, and its calls that wait for nothing
consumer.py     what applications call in threads
committing.py   offsets of the group, when asked for and in the background
coverage.py     partitions that nobody reads
processing/     handlers in threads
topic_reader.py a bounded part of a topic as a stream of Arrow batches
guard.py        one thread at a time; closed, woken, forked
"""
