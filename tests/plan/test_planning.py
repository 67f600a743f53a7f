"""From a sweep to a plan: arms, trials, budget, matching, manifest."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model.config import ModelConfig
from ablate.plan import decide_hash, plan_sweep, resolve
from ablate.plan.sizing import costs
from ablate.rundir import State, StudyDir, write_json

STEPS = {
    "norm": ["norm=rms"],
    "position": ["position=rope_500k"],
    "placement": ["placement=post"],
    "qk_norm": ["qk_norm=on"],
}


def test_a_plan_has_an_arm_for_each_step_and_a_trial_for_each_arm_and_seed(plan) -> None:
    made = plan(design="ladder", factors=STEPS, seeds=3, budget={"tokens": "100k"})
    names = [arm.name for arm in made.arms]
    assert names == ["baseline", "+norm-rms", "+position-rope_500k", "+placement-post", "+qk_norm"]
    assert {(t.arm, t.seed) for t in made.trials} == {(a, s) for a in names for s in range(3)}
    assert made.study == "mine"
    assert made.steps == round(100_000 / (8 * 128))
    for trial in made.trials:
        assert trial.fingerprint == fingerprint(trial.config)
        assert trial.id == f"{trial.arm}-s{trial.seed}-{trial.fingerprint[:8]}"
        assert trial.config["train"]["steps"] == made.steps
        assert trial.config["seed"] == trial.seed
        assert resolve(trial.config) == trial.config, "canonical"
        assert trial.config["study"] == "mine"
    assert len({t.fingerprint for t in made.trials}) == len(made.trials)


@pytest.mark.parametrize(
    "word", ["mine.yaml", "sweeps/mine.yaml", "sweeps/mine", "{here}/sweeps/mine.yaml"]
)
def test_a_sweep_named_by_its_file_is_the_same_study(
    write_sweep, tmp_path, monkeypatch, word
) -> None:
    """As a shell completes it; `study` would otherwise be another folder, with all trials anew."""
    monkeypatch.chdir(tmp_path)
    write_sweep(design="one_factor", factors={"norm": ["norm=rms"]})
    by_name = plan_sweep(["sweep=mine"])
    by_file = plan_sweep([f"sweep={word.format(here=tmp_path)}"])
    assert by_file.study == by_name.study == "mine"
    assert by_file.asked == by_name.asked
    assert [t.id for t in by_file.trials] == [t.id for t in by_name.trials]


def test_a_sweep_that_another_hides_is_not_taken_for_it(write_sweep, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(factors={"norm": ["norm=rms"]})
    (tmp_path / "conf/sweep").mkdir(parents=True)
    (tmp_path / "conf/sweep/mine.yaml").write_text("# @package _global_\nsweep: {}\n")
    with pytest.raises(ConfigError, match=r"is hidden by .*sweeps/mine.yaml"):
        plan_sweep(["sweep=conf/sweep/mine.yaml"])


def test_differences_are_to_the_baseline_and_changes_to_the_reference(plan) -> None:
    made = plan(design="ladder", factors=STEPS)
    last = made.arm("+qk_norm")
    assert last.change == {"model.attention_layer_norm": [False, True]}
    assert set(last.diff) == {
        "model.attention_layer_norm",
        "model.norm_after",
        "model.rope",
        "model.rope_theta",
        "model.position",
        "model.layer_norm_type",
        "model.layer_norm_eps",
    }
    assert made.arms[0].diff == {}


def test_a_bracket_of_rates_gives_every_arm_each_rate(plan) -> None:
    made = plan(factors={"norm": ["norm=rms"]}, lr=["1e-3", 4e-3], seeds=[5, 7])
    assert len(made.trials) == 2 * 2 * 2
    rates = {(t.arm, t.seed, t.lr) for t in made.trials}
    assert rates == {
        (a, s, r) for a in ("baseline", "norm-rms") for s in (5, 7) for r in (0.001, 0.004)
    }
    for trial in made.trials:
        assert trial.config["optim"]["lr"] == trial.lr
        assert f"-s{trial.seed}-lr{trial.lr:g}-" in trial.id
    one = plan(factors={"norm": ["norm=rms"]}, lr=2e-3)
    assert {(t.lr, t.config["optim"]["lr"]) for t in one.trials} == {(None, 0.002)}


def test_an_arm_may_have_a_bracket_of_its_own(plan) -> None:
    factors = {"norm": ["norm=rms"], "optim": ["optim=lion"]}
    brackets = {"default": [1e-3, 2e-3, 4e-3], "optim-lion": [1e-4, 2e-4], "norm-rms": 3e-3}
    made = plan(factors=factors, lr=brackets, seeds=2)
    tried = {}
    for trial in made.trials:
        tried.setdefault(trial.arm, set()).add(trial.config["optim"]["lr"])
    assert tried == {
        "baseline": {1e-3, 2e-3, 4e-3},
        "optim-lion": {1e-4, 2e-4},
        "norm-rms": {3e-3},
    }
    assert len({t.id for t in made.trials}) == len(made.trials) == 2 * (3 + 2 + 1)
    alone = plan(factors=factors, lr={"norm-rms": [1, 2]}).trials
    own = {(t.arm, t.config["optim"]["lr"]) for t in alone if t.arm != "norm-rms"}
    assert own == {("baseline", 1e-3), ("optim-lion", 1e-4)}, "their own, where none is named"


@pytest.mark.parametrize(
    ("lr", "field"),
    [
        ({"norm": [1e-3]}, "sweep.lr.norm"),
        ({"norm-rms": [1e-3, -1]}, "sweep.lr.norm-rms"),
        ({"default": ["much"]}, "sweep.lr.default"),
        ({"default": []}, "sweep.lr.default"),
        ({}, "sweep.lr"),
    ],
)
def test_a_bracket_that_makes_no_sense_is_named(plan, lr, field) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(factors={"norm": ["norm=rms"]}, lr=lr)
    assert raised.value.field == field


def test_steps_on_the_command_line_are_the_newer_word(plan) -> None:
    made = plan("train.steps=9", factors={"norm": ["norm=rms"]}, budget={"tokens": "1M"})
    assert made.steps == 9
    assert {t.config["train"]["steps"] for t in made.trials} == {9}


@pytest.mark.parametrize("budget", ["sweep.budget={tokens:20480}", "sweep.budget.tokens=20480"])
def test_a_budget_on_the_command_line_replaces_the_sweeps(plan, budget) -> None:
    assert plan(budget, factors={"norm": ["norm=rms"]}, budget={"steps": 5}).steps == 20
    assert (
        plan("sweep.budget=null", factors={"norm": ["norm=rms"]}, budget={"steps": 5}).steps == 200
    )


@pytest.mark.parametrize(
    ("override", "own", "said"),
    [
        ("sweep.budget.steps=40", {"tokens": "2M"},
         "sweep.budget.steps=40 stands in place of the sweep's own budget (tokens: 2M)."),
        ("sweep.budget={tokens:1M}", {"steps": 9},
         "sweep.budget.tokens=1M stands in place of the sweep's own budget (steps: 9)."),
        ("train.steps=9", {"tokens": "1M"},
         "train.steps=9 stands in place of the sweep's budget (tokens: 1M)."),
        ("sweep.budget.steps=40", {"steps": 9}, None),  # the same word, said anew
        ("sweep.budget.steps=40", None, None),
        ("sweep.budget=null", {"steps": 9}, None),
    ],
)  # fmt: skip
def test_another_budget_than_the_one_that_was_written_is_said(plan, override, own, said) -> None:
    notes = plan(override, factors={"norm": ["norm=rms"]}, budget=own).notes
    assert [note for note in notes if "stands in place" in note] == ([said] if said else [])


def test_what_stands_on_the_command_line_holds_for_every_arm(plan) -> None:
    made = plan(
        "sweep.seeds=[3]", "model.d_model=32", "study=other", factors={"norm": ["norm=rms"]}
    )
    assert made.study == "other"
    assert {t.config["model"]["d_model"] for t in made.trials} == {32}
    assert {t.seed for t in made.trials} == {3}
    assert made.base == ["model=gpt2", "size=tiny", "model.d_model=32", "study=other"]


@pytest.mark.parametrize(("match", "what"), [("params", 0), ("flops", 1)])
def test_matched_arms_are_within_one_percent_and_shown(plan, match, what) -> None:
    factors = {"activation": ["activation=swiglu"], **STEPS, "tying": ["tying=untied"]}
    made = plan(design="ladder", factors=factors, match=match)
    target = costs(made.arms[0].config)[what]
    for arm in made.arms:
        assert abs(costs(arm.config)[what] / target - 1) <= 0.01
        assert (arm.parameters, arm.flops_per_token) == costs(arm.config)
        for field, (_, new) in arm.resized.items():
            assert arm.config["model"][field.removeprefix("model.")] == new
            assert field in arm.diff
    assert made.arm("+activation-swiglu").resized
    assert "MLP" in made.arm("+activation-swiglu").paired
    if match == "params":
        # The next rung is near enough at the width of the one below: the two stay paired
        # throughout.
        assert made.arm("+norm-rms").change.keys() == {
            "model.layer_norm_type",
            "model.layer_norm_eps",
        }
        assert made.arm("+norm-rms").paired == "everything that both have"


def test_without_matching_unequal_sizes_are_said(plan) -> None:
    made = plan(factors={"activation": ["activation=swiglu"]})
    assert any("More than 1 %" in note and "activation" in note for note in made.notes)
    assert not any("More than" in n for n in plan(factors={"norm": ["norm=rms"]}).notes)


@pytest.mark.parametrize(
    ("name", "mode", "rows"),
    [
        ("fsdp", "batch", 4),
        ("hsdp", "batch", 4),
        ("ddp", "batch", 4),
        ("fsdp", "micro_batch", 4),
        ("fsdp", "batch", None),
    ],
)
def test_whole_gradients_of_divided_weights_are_said(
    plan, name: str, mode: str, rows: int | None
) -> None:
    """Without a word of how large the GPUs are, by which they would be refused."""
    words = [f"parallel={name}", "train.batch_size=8"]
    words += [f"train.micro_batch_size={rows}"] if rows else []
    words += [] if name == "ddp" or mode == "batch" else [f"parallel.grad_sync_mode={mode}"]
    notes = [n for n in plan(*words, factors={"norm": ["norm=rms"]}).notes if "gradients" in n]
    assert len(notes) == (name != "ddp" and mode == "batch" and rows is not None)
    assert all("parallel.grad_sync_mode=micro_batch" in note for note in notes)
    assert all("MiB in baseline" in note for note in notes)


def test_excluded_combinations_are_left_out(plan) -> None:
    factors = {"norm": ["norm=rms"], "position": ["position=rope", "position=alibi"]}
    everything = plan(design="factorial", factors=factors)
    some = plan(
        design="factorial", factors=factors, exclude=[{"norm": "rms", "position": ["alibi"]}]
    )
    gone = {a.name for a in everything.arms} - {a.name for a in some.arms}
    assert gone == {"norm-rms+position-alibi"}


def test_a_design_of_the_users_own_is_found_by_import_path(plan, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine_designs.py").write_text(
        "from ablate.design import DESIGNS\ndef backwards(factors):\n"
        "    return DESIGNS['ladder'](dict(reversed(factors.items())))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = plan(design="mine_designs:backwards", factors=STEPS)
    assert [a.name for a in made.arms][1:] == [
        "+qk_norm",
        "+placement-post",
        "+position-rope_500k",
        "+norm-rms",
    ]


def test_planning_twice_is_the_same_and_writes_nothing(plan, tmp_path) -> None:
    first = plan(design="factorial", factors=STEPS, match="params")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    second = plan_sweep(["sweep=mine"], cwd=tmp_path)
    assert first.to_json() == second.to_json()
    assert [t.config for t in first.trials] == [t.config for t in second.trials]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_the_manifest_holds_the_frozen_question(plan) -> None:
    claim = {"statement": "RMSNorm is as good", "source": "arXiv 1910.07467", "of": "+norm-rms",
             "direction": "no_worse", "absolute": 0.01}  # fmt: skip
    made = plan(
        design="ladder", factors=STEPS, seeds=2, claim=claim, decide={"smallest_effect": 0.01}
    )
    manifest = json.loads(json.dumps(made.manifest()))
    expected = (
        "schema study created revision question design baseline factors decide decide_hash match "
        "budget arms trials code environment history"
    )
    assert set(expected.split()) <= manifest.keys()
    assert manifest["decide"]["smallest_effect"] == 0.01
    assert manifest["decide_hash"] == decide_hash(manifest["decide"])
    (frozen,) = manifest["claim"]
    assert {k: frozen[k] for k in claim} == claim
    assert frozen["metric"] == "val/bpb"
    assert manifest["budget"] == {"steps": made.steps, "tokens": made.steps * 8 * 128}
    assert [a["reference"] for a in manifest["arms"]] == [
        None,
        "baseline",
        "+norm-rms",
        "+position-rope_500k",
        "+placement-post",
    ]
    assert manifest["arms"][1]["overrides"] == ["norm=rms"]
    assert manifest["arms"][1]["levels"]["norm"] == "rms"
    assert manifest["arms"][1]["diff"]["model.layer_norm_type"] == ["default", "rms"]
    assert {t["fingerprint"] for t in manifest["trials"]} == {t.fingerprint for t in made.trials}
    assert {"version", "commit", "dirty"} <= manifest["code"].keys()
    assert manifest["environment"]["python"] == sys.version.split()[0]


def test_the_hash_of_the_rule_changes_with_the_rule(plan) -> None:
    one = plan(factors={"norm": ["norm=rms"]})
    other = plan(factors={"norm": ["norm=rms"]}, decide={"alpha": 0.01})
    assert decide_hash(one.decide) != decide_hash(other.decide)


def test_the_detectable_effect_is_known_once_a_study_has_finished(plan, tmp_path) -> None:
    made = plan(factors={"norm": ["norm=rms"], "bias": ["bias=none"]})
    assert made.smallest_detectable_effect is None
    assert "the noise is unknown" in made.undetectable
    study = StudyDir(tmp_path / "runs" / "earlier")
    study.write_manifest(made.manifest())
    rng = random.Random(0)
    for trial in made.trials:
        folder = study.trial(trial.id)
        folder.create(trial.config, made.steps)
        folder.write_state(State(status="done"))
        write_json(folder.summary_path, {"val/bpb": 2 + 0.1 * trial.seed + rng.gauss(0, 0.01)})
    again = plan(factors={"norm": ["norm=rms"], "bias": ["bias=none"]})
    assert again.noise.source == "earlier"
    assert 0.002 < again.noise.sd < 0.03, "what the seeds share is no noise"
    assert again.smallest_detectable_effect > again.noise.sd
    assert again.seeds_needed > 3
    one_seed = plan(factors={"norm": ["norm=rms"], "bias": ["bias=none"]}, seeds=1)
    assert one_seed.smallest_detectable_effect is None
    assert "one seed" in one_seed.undetectable
    other = plan("model.n_layers=3", factors={"norm": ["norm=rms"]})
    assert other.smallest_detectable_effect is None, "another baseline, another noise"


def test_a_hundred_arms_are_planned_in_two_seconds_without_torch(
    write_sweep, hundred_arms, tmp_path
) -> None:
    write_sweep(design="grid", factors=hundred_arms, match="params")
    code = (
        "import sys; from ablate.cli.plan import main; main(['sweep=mine', '--json'])\n"
        "heavy = {'torch', 'pandas', 'hydra', 'transformers', 'scipy', 'numpy', 'jaxtyping'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    root = Path(__file__).parents[2]
    durations = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        durations.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.returncode == 0, done.stderr
        if durations[-1] < 2:
            break
    shown = json.loads(done.stdout)
    assert len(shown["arms"]) == 120
    assert shown["trials"] == 360
    # Processor time of the one thread, which is wall time on a machine with nothing else to do.
    assert min(durations) < 2, durations


SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))


def test_there_are_ready_sweeps() -> None:
    names = {path.stem for path in SWEEPS}
    assert {"hello", "gpt2_to_olmo2", "leave_one_out_olmo2", "init_fns", "positions"} <= names


@pytest.mark.parametrize("name", [path.stem for path in SWEEPS])
def test_every_ready_sweep_is_a_sound_plan(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # no earlier study lies here, as ./runs may of whoever runs this
    made = plan_sweep([f"sweep={name}"], cwd=tmp_path)
    assert len(made.arms) >= 4
    assert made.smallest_detectable_effect is None
    assert list(tmp_path.iterdir()) == []


NESTED = sorted((Path(__file__).parents[2] / "sweeps").glob("*/*.yaml"))


@pytest.mark.parametrize("name", [f"{path.parent.name}/{path.stem}" for path in NESTED])
def test_a_sweep_in_a_folder_is_planned_as_it_is_named(name: str, tmp_path, monkeypatch) -> None:
    """Without `study=`: the study gets a name that is one folder."""
    monkeypatch.chdir(tmp_path)
    made = plan_sweep([f"sweep={name}"], cwd=tmp_path)
    assert made.study == name.replace("/", "-")
    assert TrialConfig.from_mapping(made.trials[0].config).study == made.study


def test_gpt2_to_olmo2_ends_at_olmo2(tmp_path) -> None:
    made = plan_sweep(["sweep=gpt2_to_olmo2", "sweep.match=none"], cwd=tmp_path)
    top = ModelConfig(**made.arms[-1].config["model"])
    olmo2 = {
        "activation_type": "swiglu",
        "layer_norm_type": "rms",
        "layer_norm_eps": 1e-6,
        "norm_after": True,
        "rope": True,
        "rope_theta": 500_000,
        "attention_layer_norm": True,
        "include_bias": False,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "weight_tying": False,
        "init_fn": "normal",
        "init_cutoff_factor": 3.0,
    }
    assert {name: getattr(top, name) for name in olmo2} == olmo2
    first = ModelConfig(**made.arms[0].config["model"])
    gpt2 = {
        "activation_type": "gelu_tanh",
        "layer_norm_type": "default",
        "rope": False,
        "include_bias": True,
    }
    assert {name: getattr(first, name) for name in gpt2} == gpt2


@pytest.mark.parametrize(
    ("orders", "few"),
    [("given", False), (["given", "reverse"], True), (1, True), (3, True), (4, False), (6, False)],
)
def test_a_plan_says_when_its_orders_are_too_few_for_an_interval(plan, orders, few: bool) -> None:
    factors = {k: STEPS[k] for k in ("norm", "position", "qk_norm")}
    notes = plan(design="ladder", factors=factors, orders=orders).notes
    assert any("without intervals" in note for note in notes) == few


def test_stacks_are_found_once_and_each_configuration_is_parsed_once_for_it(
    plan, monkeypatch
) -> None:
    made = plan("cluster.stack=2", factors={"norm": ["norm=rms"]}, seeds=3, budget={"steps": 5})
    parsed: list[int] = []
    of = TrialConfig.from_mapping

    def counted(values):
        parsed.append(values["seed"])
        return of(values)

    monkeypatch.setattr(TrialConfig, "from_mapping", counted)
    assert made.stacking is made.stacking
    assert len(parsed) == len(made.trials) == 6


@pytest.mark.parametrize(
    ("level", "override", "other"),
    [
        ("data.corpus=asv", "sweep.seeds=2", True),
        ("data.validation_fraction=0.1", "sweep.seeds=2", True),
        ("data.corpus=asv", "data.validation_path=one.txt", False),
        ("data.corpus=asv", "sweep.decide.metric=train/loss", False),
        ("data.document_masking=true", "sweep.seeds=2", False),
    ],
)
def test_arms_that_are_evaluated_on_other_text_are_named(
    plan, tmp_path, level: str, override: str, other: bool
) -> None:
    (tmp_path / "one.txt").write_text("In the beginning.")
    notes = plan(override, factors={"text": {"other": level}}).notes
    said = [note for note in notes if note.startswith("Other held-out text")]
    assert len(said) == other
    assert all("text-other" in note and "data.validation_path" in note for note in said)
