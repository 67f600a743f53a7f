"""Plain Hydra with any sweeper finds our conf/ and the user's, and overwrites nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import hydra
from omegaconf import OmegaConf
from ablate.config.compose import register

register()

@hydra.main(version_base="1.3", config_path="pkg://ablate.conf", config_name="train")
def main(config):
    tree = OmegaConf.to_container(config, resolve=True)
    model = tree["model"]
    print("TREE", json.dumps([model["rope_theta"], tree["seed"], model["vocab_size"]]))

main()
"""


def run(folder: Path, *arguments: str) -> list[list[int]]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("TREE")]
    return [json.loads(line.removeprefix("TREE")) for line in lines]


def test_a_multirun_finds_the_users_options_and_keeps_its_folders_apart(tmp_path: Path) -> None:
    (tmp_path / "conf/position").mkdir(parents=True)
    (tmp_path / "conf/position/mine.yaml").write_text(
        "# @package _global_\nmodel: {rope_theta: 77}\n"
    )
    assert run(tmp_path, "-m", "position=mine,rope", "seed=0,1") == [
        [77, 0, 257],
        [77, 1, 257],
        [10000, 0, 257],
        [10000, 1, 257],
    ]
    run(tmp_path, "-m", "seed=0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["conf", "runs"]
    assert [p.name for p in (tmp_path / "runs").iterdir()] == [".hydra"]
    assert len(list((tmp_path / "runs/.hydra").iterdir())) == 2


def test_a_single_run_leaves_no_trace_of_hydra(tmp_path: Path) -> None:
    assert run(tmp_path, "seed=3") == [[10000, 3, 257]]
    assert list(tmp_path.iterdir()) == []


def test_the_sweeps_of_the_user_are_a_group_for_hydra_too(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/own.yaml").write_text("# @package _global_\nseed: 8\n")
    assert run(tmp_path, "sweep=own") == [[10000, 8, 257]]
