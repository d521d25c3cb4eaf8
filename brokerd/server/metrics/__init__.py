"""The broker's counters, and the endpoint from which Prometheus reads them.

counters.py    counters and histograms of requests
families.py    all metrics of /metrics: the counters, and figures of topics, partitions, groups, transactions, the disk
endpoint.py    GET /metrics over HTTP
"""
