"""Goal: dir() of packages with lazy imports lists their exports, so that interactive shells can complete them."""

from __future__ import annotations

from types import ModuleType

import pytest

import brokerd
import brokerd.testing


@pytest.mark.parametrize("package", [brokerd, brokerd.testing])
def test_dir_names_what_is_exported(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, name) for name in dir(package))
