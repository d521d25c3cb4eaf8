"""The broker's counters, and the endpoint from which Prometheus reads them.

    counters.py    request counters and histograms: plain numbers, updated once per request
    figures.py     figures of each topic and partition, and of the disk
    collector.py   counters and gauges of the running broker, as Prometheus families
    endpoint.py    GET /metrics over HTTP

Only collector.py and endpoint.py need prometheus-client, and only they import it.
"""
