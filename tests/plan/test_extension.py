"""Extending a study: a revision that adds, and touches nothing that has run."""

from __future__ import annotations

import json

import pytest
import yaml

from ablate.cli import extend as cli
from ablate.errors import AblateError, ConfigError, StudyError
from ablate.launch.freeze import differences, freeze
from ablate.launch.settings import remember_plan, remembered
from ablate.plan import frozen_plan, plan_sweep
from ablate.plan.extension import extend
from ablate.rundir import State, StudyDir

FACTORS = {"norm": ["norm=rms"], "qk_norm": ["qk_norm=on"]}
LOOKS = {"smallest_effect": 0.01, "spending": [3, 6]}


@pytest.fixture
def study(plan, tmp_path) -> StudyDir:
    """Frozen, with looks at 3 and 6 seeds and a bracket of rates."""
    return freeze(plan(factors=FACTORS, decide=LOOKS, lr=[1e-3, 2e-3], match="params"))


def run(*argv: str) -> int:
    return cli.main(list(argv))


def test_a_frozen_plan_is_the_plan_that_was_frozen(study) -> None:
    made = frozen_plan(study)
    assert differences(study.manifest(), made.manifest()) == []
    fresh = plan_sweep(["sweep=mine"])
    assert [t.config for t in made.trials] == [t.config for t in fresh.trials]
    assert made.manifest()["arms"] == study.manifest()["arms"]


def test_more_seeds_are_a_revision_and_leave_the_old_trials_alone(study, capsys) -> None:
    before = study.manifest()
    kept = {t["id"]: (study.trial(t["id"]).path / "config.yaml").stat() for t in before["trials"]}
    study.trial(before["trials"][0]["id"]).write_state(State(status="done"))
    assert run("mine", "sweep.seeds=6") == 0
    after = study.manifest()
    assert after["revision"] == 2
    assert after["trials"][: len(before["trials"])] == before["trials"]
    assert after["arms"] == before["arms"]
    assert (after["decide"], after["decide_hash"]) == (before["decide"], before["decide_hash"])
    added = after["trials"][len(before["trials"]) :]
    assert {t["seed"] for t in added} == {3, 4, 5}
    assert len(added) == 3 * 3 * 2
    for id, stat in kept.items():
        now = (study.trial(id).path / "config.yaml").stat()
        assert (now.st_mtime_ns, now.st_ino) == (stat.st_mtime_ns, stat.st_ino)
    assert study.trial(before["trials"][0]["id"]).state().status == "done"
    larger = plan_sweep(["sweep=mine", "sweep.seeds=6"])
    assert {t.id for t in larger.trials} == {t["id"] for t in after["trials"]}
    assert differences(after, larger.manifest()) == [], "the larger sweep launches what is missing"
    for trial in larger.trials:
        assert study.trial(trial.id).config() == trial.config
    first, second = after["history"]
    spending = after["decide"]["spending"]
    assert (first["look"], first["looks"], first["alpha"]) == (1, [3], spending["alpha_at_look"][0])
    assert (second["look"], second["looks"]) == (2, [3, 6])
    assert second["alpha"] == spending["alpha_at_look"][1]
    assert second["exploratory"] is None
    assert "Look 2" in capsys.readouterr().out
    assert run("mine", "sweep.seeds=6") == 0
    assert study.manifest() == after, "asked again, nothing is written"


def test_a_frozen_study_is_extended_whatever_became_of_its_yaml(study, tmp_path) -> None:
    (tmp_path / "sweeps" / "mine.yaml").unlink()
    assert run("mine", "sweep.seeds=6", "--json") == 0
    assert len(study.manifest()["trials"]) == 36


@pytest.mark.parametrize("seeds", ["4", "[0,1,2,7]"])
def test_seeds_at_no_declared_look_are_exploratory_and_stay_so(study, seeds, capsys) -> None:
    assert run("mine", f"sweep.seeds={seeds}", "--json") == 0
    assert "none of the declared looks (3, 6)" in json.loads(capsys.readouterr().out)["exploratory"]
    six = "6" if seeds == "4" else "[0,1,2,7,8,9]"
    assert run("mine", f"sweep.seeds={six}") == 0
    last = study.manifest()["history"][-1]
    assert last["look"] == 2
    assert last["exploratory"], "what was looked at once cannot be unseen"


def test_without_declared_looks_more_seeds_are_exploratory(plan, capsys) -> None:
    freeze(plan(factors=FACTORS))
    assert run("mine", "sweep.seeds=5", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "marked exploratory: seeds were added without a declared alpha-spending plan" in out
    assert "Nothing was written" in out
    assert StudyDir(frozen_plan(StudyDir("runs/mine")).runs_dir + "/mine").manifest()[
        "revision"] == 1  # fmt: skip


def test_a_new_factor_adds_its_arms_at_every_seed(plan, capsys) -> None:
    study = freeze(plan(factors=FACTORS, match="params"))
    assert run("mine", 'sweep.factors.bias=["bias=none"]') == 0
    manifest = study.manifest()
    assert [a["name"] for a in manifest["arms"]] == ["baseline", "norm-rms", "qk_norm", "bias-none"]
    assert sum(t["arm"] == "bias-none" for t in manifest["trials"]) == 3
    assert manifest["factors"]["bias"] == ["baseline", "none"]
    assert "family of comparisons grew" in manifest["history"][-1]["exploratory"]
    assert len(frozen_plan(study).arms) == 4
    assert "new arm  bias-none against baseline" in capsys.readouterr().out


def test_a_new_arm_is_retried_with_the_resources_that_it_asks_for(plan) -> None:
    """Cancelled before the next launch, which would write them too."""
    made = plan("cluster=slurm", factors=FACTORS)
    study = freeze(made)
    remember_plan(study, made, "ablate launch")
    assert run("mine", 'sweep.factors.bias=[["bias=none","resources=gpu_long"]]') == 0
    settings = remembered(study)
    assert settings is not None
    assert {arm: own["gpus"] for arm, own in settings.arms.items()} == {"bias-none": 1}
    assert (settings.cluster["gpus"], settings.command) == (0, "ablate launch")


def test_arms_that_would_come_out_differently_today_are_refused(plan, tmp_path) -> None:
    study = freeze(plan(factors=FACTORS))
    path = tmp_path / "sweeps" / "mine.yaml"
    path.write_text(path.read_text() + "\noptim: {weight_decay: 0.2}\n")
    with pytest.raises(StudyError, match=r"optim\.weight_decay 0\.1 to 0\.2"):
        extend(study, ['sweep.factors.bias=["bias=none"]'])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sweep.decide.alpha=0.1", "written before the runs"),
        ("sweep.match=none", "resize the arms"),
        ("sweep.budget.steps=9", "unequal schedules"),
        ("sweep.claim=null", "What can:"),
        ("optim.lr=1e-2", "nothing else changes"),
        ("sweep.seeds=2", "leaves out 2"),
        ("sweep.factors.norm=null", "has no level"),
    ],
)
def test_what_is_frozen_cannot_be_extended(study, override, said) -> None:
    before = study.manifest()
    with pytest.raises(ConfigError, match=said) as raised:
        run("mine", override)
    assert raised.value.field == override.partition("=")[0]
    assert "\n" not in str(raised.value)
    assert study.manifest() == before


def test_a_writer_that_was_quicker_is_noticed(study, monkeypatch) -> None:
    extension = extend(study, ["sweep.seeds=6"])
    with study.lock():
        study.write_manifest({**study.manifest(), "revision": 2})
    with pytest.raises(StudyError, match="changed meanwhile"):
        cli._write(study, extension)


def test_adopting_writes_the_next_round_as_a_sweep(plan, tmp_path, capsys) -> None:
    freeze(plan(design="sequential", factors=FACTORS, budget={"steps": 20}))
    assert run("mine", "--adopt", "norm-rms") == 0
    written = yaml.safe_load((tmp_path / "sweeps" / "mine-2.yaml").read_text())["sweep"]
    assert written["baseline"] == ["mine:norm-rms"]
    assert list(written["factors"]) == ["qk_norm"]
    assert written["seeds"] == [3, 4, 5]
    made = plan_sweep(["sweep=mine-2"], cwd=tmp_path)
    assert made.study == "mine-2"
    assert made.arms[0].config["model"]["layer_norm_type"] == "rms"
    assert made.steps == 20
    with pytest.raises(AblateError, match="is there already"):
        run("mine", "--adopt", "norm-rms")
    with pytest.raises(ConfigError, match="Did you mean norm-rms"):
        run("mine", "--adopt", "norm-rm")


@pytest.mark.parametrize(
    "lr",
    [2e-3, {"default": [1e-3, 2e-3], "norm-rms": 3e-3}, {"norm-rms": [2e-3, 4e-3]}],
    ids=["one rate", "brackets that differ", "one bracket"],
)
def test_more_seeds_run_at_the_rates_of_their_arms(plan, lr) -> None:
    study = freeze(plan(factors=FACTORS, lr=lr))
    assert run("mine", "sweep.seeds=4") == 0
    larger = plan_sweep(["sweep=mine", "sweep.seeds=4"])
    assert {t.id for t in study.trials()} == {t.id for t in larger.trials}
    for trial in larger.trials:
        assert study.trial(trial.id).config() == trial.config
    assert run("mine", 'sweep.factors.bias=["bias=none"]') == 0
    assert [a["name"] for a in study.manifest()["arms"]][-1] == "bias-none"
    if isinstance(lr, float):
        with pytest.raises(StudyError, match=r"optim\.lr 0\.002 to 0\.003"):
            run("mine", "sweep.lr=3e-3")
