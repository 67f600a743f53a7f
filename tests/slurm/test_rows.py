"""Every case of the documentation, and every pain of the users', has its test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAINS = {1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 17, 19, 20, 21, 22, 24, 25, 26, 29, 30, 31, 32,
         33, 34, 36, 37, 38, 39, 40}  # fmt: skip
"""Numbers of the list of pains that the design was written against."""


def names_of_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {n for f in files for n in re.findall(r"^def (test_\w+)", f.read_text(), re.MULTILINE)}


def test_every_case_of_the_documentation_has_the_test_that_it_names() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "slurm.md").read_text())
    assert len(named) > 30
    assert set(named) <= names_of_tests()


def test_every_pain_has_a_test_named_after_it() -> None:
    found = {int(n[10:12]) for n in names_of_tests() if re.match(r"test_pain_\d\d_", n)}
    assert found == PAINS
