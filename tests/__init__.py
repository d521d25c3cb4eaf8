"""Tests. The package is imported here so that it comes before gRPC: it tells gRPC to keep quiet on standard error."""

import brokerd  # noqa: F401
