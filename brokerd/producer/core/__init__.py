"""The producer's decisions, pure: events in, commands out. No thread, no clock, no network.

producer_core.py      the machine: takes events, returns the commands to carry out next (commands.py)
accumulator.py        batches by partition: linger, ready, drain, mute (producer_batch.py, memory.py)
idempotence.py        producer id, epoch, sequences
identity.py           the lasting identity and members, and what each delivered (membership.py, repeated_requests.py)
streams.py            streams to nodes, and the requests in flight there
topics.py             ids, partition counts and leaders of topics; when to request them
partitioner.py        partitions of rows by their keys (sticky.py: of rows without a key)
failures.py           errors of records that failed (verdicts.py: which batches fail)
metrics.py            rates, averages and maxima, by Kafka's names
transport.py          the contract with the network, as values and protocols
"""
