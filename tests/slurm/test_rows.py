"""Every case of the documentation, and every pain of the users', has its test."""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAINS = {1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 17, 19, 20, 21, 22, 24, 25, 26, 29, 30, 31, 32,
         33, 34, 36, 37, 38, 39, 40}  # fmt: skip
"""Numbers of the list of pains that the design was written against."""


@functools.cache
def names_of_tests(folder: str = "tests") -> set[str]:
    files = (ROOT / folder).rglob("test_*.py")
    return {n for f in files for n in re.findall(r"^def (test_\w+)", f.read_text(), re.MULTILINE)}


def rows() -> list[tuple[str, str]]:
    """(case, what is said of its test) in the table of docs/slurm.md."""
    text = (ROOT / "docs" / "slurm.md").read_text()
    section = text.partition("## What is tried on a real SLURM\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return [(case, test) for case, test in lines[2:]]  # below the head and its rule


def test_every_case_of_the_documentation_has_the_test_that_it_names() -> None:
    """In the folder that it names, tests/slurm where it names none."""
    assert len(rows()) > 30
    for case, test in rows():
        named = re.findall(r"`(test_\w+)`", test)
        folder = re.search(r"\((tests/\w+)\)", test)
        assert named, case
        assert set(named) <= names_of_tests(folder[1] if folder else "tests/slurm"), case


def test_every_pain_has_a_test_named_after_it() -> None:
    found = {int(n[10:12]) for n in names_of_tests() if re.match(r"test_pain_\d\d_", n)}
    assert found == PAINS
