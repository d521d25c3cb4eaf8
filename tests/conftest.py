"""Settings and hooks for all tests. Fixtures live beside the tests that use them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from brokerd.process import OWN_THREADS
from tests.support.wait import DEADLINE_S, wait_until

# How fast a machine is decides about no test: neither about one example's time nor about how long examples take to make. And
# nothing is remembered from one run to the next.
settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("brokerd")

# A shell's background jobs ignore SIGINT, and all that they start does too: here Ctrl-C works wherever the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take tests one by one. Those that share a fixture of their module stay together, so that it is made once."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
        if any(definition.scope == "module" for each in definitions for definition in each):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end; searching it for garbage again and again takes a tenth of the run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own, and fails at the deadline if it hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(bounded())
    return True


_lasting: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of fixtures for several tests, and those already reported


def _own_threads() -> list[threading.Thread]:
    """Without those of pools (`name_0`), which start when first needed: a fixture's broker may have had none before."""
    names = re.compile(rf"{OWN_THREADS}[a-z]+|consumer-handler-\d+")
    return [thread for thread in threading.enumerate() if names.fullmatch(thread.name) and thread not in _lasting]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Notes which threads serve several tests."""
    result = yield
    if fixturedef.scope != "function":
        _lasting.update(_own_threads())
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """No thread of a client or a broker outlives its test: it would still speak in the next one's log. What the source and the
    sink leave to their process ends here, while the test's broker is still there; with Spark, that process is Spark's."""
    if item.get_closest_marker("spark"):
        return (yield)
    for thread in _own_threads():
        if thread.name == f"{OWN_THREADS}plan":
            thread.join(DEADLINE_S)
    for module, cache in (("brokerd.client.leases", "_clients"), ("brokerd.sink.task", "producers")):
        if module in sys.modules:
            getattr(sys.modules[module], cache).close()
    result = yield
    left = _own_threads()
    _lasting.update(left)
    names = [thread.name for thread in left]
    wait_until(lambda: not any(thread.is_alive() for thread in left), what=f"this test closes what runs the threads {names}")
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: half as many workers again as there are processors, for tests wait half of their time, for daemons and clocks."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the project's own."""
    parser.addoption("--rewrite", action="store_true", help="write what scenarios lead to now into their files")


@pytest.fixture(scope="session")
def is_rewriting(pytestconfig: pytest.Config) -> bool:
    """True if scenarios are rewritten instead of compared."""
    return bool(pytestconfig.getoption("rewrite"))
