"""The producer's decisions, pure: events in, commands out. No thread, no clock, no network.

producer_core.py  the machine: takes events, returns the commands to carry out next
accumulator.py    batches by partition: linger, ready, drain, mute; memory
idempotence.py    producer id, epoch, sequences, members; what a response proves
streams.py        streams to nodes, and the requests in flight there; commands
topics.py         ids, partition counts and leaders of topics; when to request them
partitioner.py    partitions of rows, by their keys or without
failures.py       errors of records that failed
metrics.py        rates, averages and maxima, by Kafka's names
transport.py      the contract with the network, as values and protocols
membership.py     transactions as values
"""
