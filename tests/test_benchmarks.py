"""The benchmarks run by hand; that they can still be imported is asked in every run."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name: str) -> None:
    importlib.import_module(name)
