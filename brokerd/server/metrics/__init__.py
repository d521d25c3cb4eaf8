"""The broker's counters, and the endpoint from which Prometheus reads them.

counters.py    counters and histograms of requests
families.py    everything that /metrics shows: these, and the figures of topics, partitions, groups, transactions, the disk
endpoint.py    GET /metrics over HTTP
"""
