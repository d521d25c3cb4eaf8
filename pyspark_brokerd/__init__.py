"""Registers format("brokerd") with Spark, which looks for DefaultSource in every top-level package named pyspark_*."""

from brokerd.datasource.source import BrokerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
