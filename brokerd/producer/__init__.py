"""The producer: decisions that are pure, and one loop that carries them out. In the order of a record's way:

producer.py   what applications call
waiting.py    the lock of a producer, and the calls that wait
intake.py     topics, memory and partitions of new records
core/         batches, sequences, retries, epochs: pure
rows/         Arrow columns: checked, split by partition, encoded
sender.py     the one loop, on a thread of its own
members.py    the producer as a member of a transaction (transaction.py: transactions of one producer; sent_offsets.py:
              offsets of a group that go with them)
futures.py    futures of records and batches
lifecycle.py  closes producers at exit, and tells them of a fork
"""
