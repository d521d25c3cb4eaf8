"""The producer, in the order in which a record passes through it:

producer.py     the class for applications; closing at exit
waiting.py      the lock of a producer, and the blocking calls
arguments.py    checks of arguments
intake.py       topics, memory and partitions of new records
columns.py      Arrow columns: checked, split by partition, encoded
core/           batches, sequences, retries, epochs: pure
sender.py       the loop that sends, on its own thread
futures.py      futures of records and batches
transaction.py  transactions, and the consumer group offsets committed with them
"""
