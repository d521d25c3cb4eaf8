"""Lets Spark find format("brokerd") by itself: Spark looks for DefaultSource in every top-level package named pyspark_*."""

from brokerd.datasource.source import BrokerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
