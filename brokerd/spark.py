"""The module that Spark programs import. The rest of the sink and the source is used through `format("brokerd")`.

from brokerd.spark import append_to

query = rows.writeStream.foreachBatch(append_to("events", {"bootstrap.servers": "127.0.0.1:9192"})).start()
"""

from __future__ import annotations

from brokerd.sink.foreach_batch import append_to

__all__ = ["append_to"]
