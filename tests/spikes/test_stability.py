"""The sweeps that make instability: each is found, planned, and asks what it says."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from ablate.config.compose import Composer
from ablate.errors import AblateError
from ablate.plan import plan_sweep
from ablate.rundir import StudyDir
from benchmarks.stability import chain, plant, table
from tests.cli.written import STEPS, end

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps" / "stability").glob("*.yaml"))
NAMES = [p.stem for p in SWEEPS]


def test_sweeps_in_a_folder_are_listed_by_folder_and_name(tmp_path):
    (tmp_path / "sweeps" / "mine").mkdir(parents=True)
    (tmp_path / "sweeps" / "mine" / "own.yaml").write_text("# @package _global_\nseed: 3\n")
    composer = Composer(tmp_path)
    assert {f"stability/{name}" for name in NAMES} | {"mine/own"} <= set(composer.choices("sweep"))
    assert composer.compose(["sweep=mine/own"])["seed"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_planned_and_varies_one_thing(name, tmp_path):
    text = [f"data.path={tmp_path}"] if name in ("planted", "z_loss_few_tokens") else []
    plan = plan_sweep([f"sweep=stability/{name}", *text], cwd=tmp_path)
    assert plan.study == f"stability-{name}"
    assert len(plan.arms) >= 2
    assert all(t.config["spikes"]["name"] == "observe" for t in plan.trials) == (name != "planted")


def test_a_table_without_a_bracket_has_the_one_rate(tmp_path):
    """As sweep=stability/planted has it: its manifest names no rate."""
    study, entries = StudyDir(tmp_path / "mine"), []
    for arm, seed in itertools.product("ab", (0, 1)):
        config = {"seed": seed, "name": arm, "train": {"steps": STEPS}, "optim": {"lr": 0.003}}
        trial = study.trial(f"{arm}-s{seed}")
        trial.create(config, STEPS)
        entries.append({"id": trial.id, "arm": arm, "seed": seed, "lr": None})
    study.write_manifest({"schema": 1, "study": "mine", "arms": [], "trials": entries})
    with pytest.raises(AblateError, match="launch it first"):
        table(study)
    for trial in study.trials():
        end(trial)
    head, _, *rows = table(study).splitlines()
    assert head.startswith("| arm | 0.003 | usable |")
    assert [row[:5] for row in rows] == ["| a |", "| b |"]


def test_planted_text_holds_noise_and_repetitions_and_is_the_same_each_time(tmp_path):
    for folder in ("a", "b"):
        plant(tmp_path / folder, documents=100)
    texts = [p.read_text() for p in sorted((tmp_path / "a").iterdir())]
    assert texts == [p.read_text() for p in sorted((tmp_path / "b").iterdir())]
    assert sum("hahaha" in t for t in texts) == 1
    assert sum(t[0] in "#%&@!~^*=+{}[]<>|;:?/" for t in texts) == 1


def test_the_symbols_of_a_chain_are_equally_frequent_and_each_has_four_that_follow(tmp_path):
    for folder in ("a", "b"):
        chain(tmp_path / folder, documents=2, length=50_000)
    texts = [p.read_text() for p in sorted((tmp_path / "a").iterdir())]
    assert texts == [p.read_text() for p in sorted((tmp_path / "b").iterdir())]
    count = Counter("".join(texts))
    assert len(count) == 94
    assert max(count.values()) < 1.5 * min(count.values())
    after: dict[str, set[str]] = {}
    for a, b in itertools.pairwise(texts[0]):
        after.setdefault(a, set()).add(b)
    assert max(map(len, after.values())) == 4
