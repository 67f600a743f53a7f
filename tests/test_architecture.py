"""Promises about absence: what must not be imported, and where a line may not live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOGIN_NODE_VERBS = [["--help"], ["plan", "sweep=hello"], ["list"], ["--version"]]


def imported(argv: list[str], cwd: Path) -> tuple[int, set[str]]:
    """Exit code and top-level packages imported by `ablate ARGV` in a fresh interpreter."""
    code = (
        "import sys\n"
        "from ablate.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code or 0\n"
        "names = {m.split('.')[0] for m in sys.modules}\n"
        "print(code, *sorted(names), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    code_text, *names = done.stderr.strip().splitlines()[-1].split()
    return int(code_text), set(names)


@pytest.mark.parametrize("argv", LOGIN_NODE_VERBS, ids=lambda a: a[0])
def test_a_login_node_verb_answers_without_torch(argv: list[str], tmp_path: Path) -> None:
    code, names = imported(argv, tmp_path)
    assert code == 0
    assert "ablate" in names
    assert not names & {"torch", "wandb", "submitit", "transformers"}


def test_no_module_is_called_utils() -> None:
    found = [p for p in ROOT.glob("ablate/**/*.py") if p.stem in {"utils", "helpers", "misc"}]
    assert not found


def test_only_three_links_join_the_folders() -> None:
    links = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("*/*") if p.is_symlink()}
    assert {n for n in links if not n.startswith(".")} == {
        "ablate/conf",
        "ablate/analysis",
        "conf/sweep",
    }
