"""Runs the tests of the public Producer with both APIs: threads and asyncio."""

from __future__ import annotations

import pytest

from tests.support.faces import both_faces, take_face
from tests.unit.producer import test_producer

# These tests check application threads, or interrupt them.
OF_THREADS = {
    "test_callbacks_and_await",
    "test_after_a_fork_the_child_is_told",
    "test_struck_anywhere_a_transaction_is_committed_or_not_and_the_next_one_works",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ not in OF_THREADS:
        both_faces(metafunc, "test_producer", "test_small_batches", "test_transaction")


@pytest.fixture(autouse=True)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets Producer to the API that the test runs with."""
    take_face(request, monkeypatch, test_producer)
