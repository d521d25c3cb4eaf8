"""brokerd: an ordered, durable log for PySpark."""

__version__ = "0.1.0"
