"""What the broker counts, and how Prometheus reads it.

    histogram.py   counts in buckets; pure
    counters.py    what is counted as requests pass: plain numbers, touched once per request
    figures.py     what is told of each topic and partition, and of the disk
    collector.py   counters, and gauges read off the running broker, as Prometheus families
    endpoint.py    GET /metrics over HTTP

Only collector.py and endpoint.py need prometheus-client, and only they import it.
"""
