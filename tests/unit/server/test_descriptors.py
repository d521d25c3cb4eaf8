"""Connections and open log files are reduced to fit the limit of open files."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.server.daemon import RESERVED, fitted
from tests.support.logged import messages_of


def test_settings_that_fit_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig()
    limit = config.max_connections + config.log_max_open_files + RESERVED
    assert fitted(config, limit) is config
    assert not messages_of(caplog, "brokerd.server.daemon")


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 12_000])
def test_what_does_not_fit_is_lowered_and_said(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    config = fitted(BrokerConfig(), limit)
    assert 8 <= config.log_max_open_files <= 4_096
    assert 8 <= config.max_connections <= 10_000
    assert config.log_max_open_files + config.max_connections + RESERVED <= max(limit, RESERVED + 32)
    assert f"the process may have {limit} (RLIMIT_NOFILE)" in caplog.text
    assert f"using {config.log_max_open_files} log files and {config.max_connections} connections" in caplog.text


def test_connections_are_served_before_files_are_kept_open() -> None:
    config = fitted(BrokerConfig(max_connections=2_000), 4_096)
    assert (config.max_connections, config.log_max_open_files) == (2_000, 4_096 - 2_000 - RESERVED)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = (
        "import resource; from brokerd.server.daemon import raise_limit; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard})); "
        "print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert told[1] == told[2] == str(hard)
    assert int(told[0]) == (hard if hard != resource.RLIM_INFINITY else 2**31 - 1)
