"""The scale of randomised tests: BROKERD_TEST_SCALE multiplies their cases (default 1, which `make test` can afford)."""

from __future__ import annotations

import os

TEST_SCALE = max(1, int(os.environ.get("BROKERD_TEST_SCALE", "1")))
