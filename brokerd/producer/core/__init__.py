"""The producer's rules, pure: no thread, no clock, no network. Events in, commands out.

producer_core.py      the machine: what each event changes, what is to be done next (commands.py)
accumulator.py        batches by partition: linger, ready, drain, mute (producer_batch.py, memory.py)
idempotence.py        producer id, epoch, sequences (identity_requests.py)
connections.py        streams to nodes
topics.py             what is known of topics
partitioner.py        which partition a key belongs to (sticky.py: rows without a key)
failures.py           what a response's error means for a batch
delivery_report.py    what has ended, and how (metrics.py)
transport.py          what the producer asks of the network, as values and protocols
"""
