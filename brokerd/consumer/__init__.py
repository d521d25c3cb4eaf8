"""The plain Python consumer. In the order of data flow:

fetching.py     looks up where partitions begin (resolution.py), and fetches their records into the buffer
core/           positions and records: pure
base.py         a consumer's state, and its calls that do not wait
consumer.py     the public class for threads
committing.py   the group's offsets: commits on request and in the background
processing/     record handlers in threads
topic_reader.py a bounded part of a topic as a stream of Arrow batches
guard.py        one thread at a time; close, wakeup, fork
"""
