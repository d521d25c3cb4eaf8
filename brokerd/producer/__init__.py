"""The producer. In the order of a record's way:

producer.py     what applications call; closing at exit
waiting.py      the lock of a producer, and the calls that wait
arguments.py    arguments of calls, checked
intake.py       topics, memory and partitions of new records
columns.py      Arrow columns: checked, split by partition, encoded
core/           batches, sequences, retries, epochs: pure
sender.py       the one loop, on a thread of its own
futures.py      futures of records and batches
transaction.py  transactions of one producer, its members, and the offsets of a group that go with them
"""
