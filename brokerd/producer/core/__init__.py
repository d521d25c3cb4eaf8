"""The producer's decisions, pure: events in, commands out. No threads, clocks or network, and no import of the shell around them.

producer_core.py  the state machine: takes events, returns commands
accumulator.py    a batch and its states; batches by partition: linger, ready, drain, mute; memory
identity.py       producer id, epoch, members and their requests; sequences
streams.py        streams to nodes, and their requests in flight; commands
topics.py         ids, partition counts and leaders of topics; when to request metadata
partitioner.py    partitions of rows, with and without keys
metrics.py        rates, averages and maxima, by Kafka's names
transport.py      the interface to the network: values and protocols
membership.py     transactions as values
"""
