"""The README's tables and commands hold."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ablate.cli import VERBS, main
from ablate.config.compose import Composer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("ablate ")]


def test_every_command_of_the_readme_names_a_verb() -> None:
    assert {c[1] for c in commands()} <= set(VERBS)
    assert len(commands()) >= 6


@pytest.mark.parametrize(
    "argv", [c[1:] for c in commands() if c[1] == "plan"], ids=lambda a: " ".join(a)
)
def test_a_plan_of_the_readme_works(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 0


def test_the_sweep_of_the_readme_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (yaml,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(yaml, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "sweep=mine"]) == 0
    assert main(["plan", "sweep=mine", "--check"]) == 0


def test_the_table_of_toggles_is_the_folder_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    composer = Composer()
    rows = dict(re.findall(r"^\| `(\w+)=` \| (.*?) \|", README, flags=re.MULTILINE))
    assert set(rows) == {g for g in composer.groups() if g != "sweep"}
    for group, text in rows.items():
        assert re.findall(r"`([^`]+)`", text) == composer.choices(group), group


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
