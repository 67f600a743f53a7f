"""What is compared, what is refused and what is marked: on studies written through the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies

from ablate.analysis import judge, load
from ablate.analysis.display import explain
from ablate.analysis.earlier import at_revision
from ablate.errors import AblateError, ConfigError, StudyError

TRUTH = {"base": 0.0, "rope": -0.03, "bad": 0.03}
VALUES = studies.values(TRUTH)


def verdicts(path: Path, **options: Any) -> dict[str, str]:
    table = judge(load(path), **options).table
    return dict(zip(table["arm"], table["verdict"], strict=True))


def test_a_study_is_judged_by_its_frozen_rule(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", VALUES)
    j = judge(load(study.path))
    assert verdicts(study.path) == {"base": "baseline", "rope": "better", "bad": "worse"}
    assert j.exploratory == []
    d = np.mean([VALUES["rope"][s] - VALUES["base"][s] for s in range(3)])
    assert j.table.set_index("arm").loc["rope", "difference"] == pytest.approx(d)


def test_another_metric_another_rule_or_no_plan_is_marked_exploratory(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "a", VALUES)
    assert "val/loss" in judge(load(study.path), metric="val/loss").exploratory[0]
    changed = studies.write_study(tmp_path / "b", VALUES, manifest_extra={"decide_hash": "0" * 64})
    assert "edited after the launch" in judge(load(changed.path)).exploratory[0]
    singles = studies.write_study(tmp_path / "c", VALUES, design="singles")
    assert "without a plan" in judge(load(singles.path)).exploratory[0]
    grown = studies.write_study(
        tmp_path / "d",
        VALUES,
        manifest_extra={"revision": 2, "history": [{}, {"what": "3 more seeds"}]},
    )
    assert "3 more seeds" in judge(load(grown.path)).exploratory[0]


def test_an_unfinished_study_is_refused_or_marked(tmp_path: Path) -> None:
    values = {a: dict(row) for a, row in VALUES.items()}
    values["bad"][2] = "pending"
    study = studies.write_study(tmp_path / "s", values)
    with pytest.raises(StudyError, match=r"unfinished: 8 done, 1 pending.*--partial"):
        judge(load(study.path))
    j = judge(load(study.path), partial=True)
    assert "unfinished" in j.exploratory[0]
    assert verdicts(study.path, partial=True)["rope"] == "better"


def test_a_diverged_trial_is_a_loss_and_a_failed_one_is_missing_and_said(tmp_path: Path) -> None:
    values = {a: dict(row) for a, row in VALUES.items()}
    values["rope"][1] = "diverged"
    values["bad"][0] = "failed"
    j = judge(load(studies.write_study(tmp_path / "s", values).path))
    rows = j.table.set_index("arm")
    assert rows.loc["rope", "verdict"] == "worse"
    assert rows.loc["rope", "diverged"] == 1
    assert rows.loc["bad", "failed"] == 1
    assert rows.loc["bad", "verdict"] == "worse"
    assert "failed" in j.notes[0]


def test_a_final_value_that_is_not_finite_counts_as_diverged(tmp_path: Path) -> None:
    values = {a: dict(row) for a, row in VALUES.items()}
    values["rope"][1] = float("nan")
    rows = judge(load(studies.write_study(tmp_path / "s", values).path)).table.set_index("arm")
    assert (rows.loc["rope", "diverged"], rows.loc["rope", "verdict"]) == (1, "worse")


def _set(section: str, name: str, value: Any) -> Callable[[str, int, dict[str, Any]], None]:
    def change(arm: str, seed: int, tree: dict[str, Any]) -> None:
        if arm == "rope":
            tree[section][name] = value

    return change


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("train", "steps", 20),
        ("train", "batch_size", 4),
        ("precision", "name", "bf16"),
        ("data", "corpus", "asv"),
        ("model", "d_model", 128),
    ],
)
def test_arms_that_differ_in_more_than_they_declare_are_refused_by_name(
    tmp_path: Path, section: str, name: str, value: Any
) -> None:
    change = _set(section, name, value)
    study = studies.write_study(tmp_path / "a", VALUES, config_change=change)
    with pytest.raises(StudyError, match=rf"^{section}\.{name}: arm rope and its reference base"):
        judge(load(study.path))
    declared = {"base": {}, "rope": {f"{section}.{name}": ["?", value]}, "bad": {}}
    factor = studies.write_study(tmp_path / "b", VALUES, diffs=declared)
    assert verdicts(factor.path)["rope"] == "better"


@pytest.mark.parametrize("design", ["singles", "one_factor"])
def test_trials_run_one_by_one_get_no_verdict_on_different_budgets(
    tmp_path: Path, design: str
) -> None:
    """Whatever two such trials differ in is declared; in a sweep the budget was meant."""

    def change(arm: str, seed: int, tree: dict[str, Any]) -> None:
        if arm != "base":  # in `bad` other steps of another size: as many tokens
            tree["train"] |= {"steps": 48} if arm == "rope" else {"steps": 20, "batch_size": 16}

    study = studies.write_study(
        tmp_path / "s",
        VALUES,
        design=design,
        diffs={
            "base": {},
            "rope": {"train.steps": [40, 48]},
            "bad": {"train.steps": [40, 20], "train.batch_size": [8, 16]},
        },
        config_change=change,
        summary=lambda arm, seed: {"tokens": 48 * 1024} if arm == "rope" else {},
    )
    j = judge(load(study.path))
    row = j.table.set_index("arm").loc["rope"]
    assert verdicts(study.path)["bad"] == "worse"
    if design == "singles":
        assert row["verdict"] == "undecided"
        assert "for 49,152 tokens, its reference for 40,960" in row["note"]
        assert "would decide" not in row["note"]
    else:
        assert (row["verdict"], row["note"]) == ("better", "")


@pytest.mark.parametrize("design", ["singles", "one_factor"])
@pytest.mark.parametrize("given", [False, True])
def test_trials_run_one_by_one_get_no_verdict_on_different_texts(
    tmp_path: Path, design: str, given: bool
) -> None:
    """In a sweep it was meant; with one held-out text for both it is none."""

    def change(arm: str, seed: int, tree: dict[str, Any]) -> None:
        tree["data"] |= {"validation_path": "held_out.txt" if given else None}
        if arm == "rope":
            tree["data"] |= {"corpus": "asv"}

    study = studies.write_study(
        tmp_path / "s",
        VALUES,
        design=design,
        diffs={"base": {}, "rope": {"data.corpus": ["kjv", "asv"]}, "bad": {}},
        config_change=change,
    )
    row = judge(load(study.path)).table.set_index("arm").loc["rope"]
    assert verdicts(study.path)["bad"] == "worse"
    if design == "singles" and not given:
        assert row["verdict"] == "undecided"
        assert "other held-out text than its reference" in row["note"]
        assert "would decide" not in row["note"]
    else:
        assert (row["verdict"], row["note"]) == ("better", "")


def test_what_has_one_seed_is_named(tmp_path: Path) -> None:
    values: dict[str, dict[int, Any]] = {"base": {0: 2.0}, "rope": {0: 1.9, 1: 1.91}}
    j = judge(load(studies.write_study(tmp_path / "a", values).path))
    assert j.table.set_index("arm").loc["rope", "note"] == "the reference has one seed: no interval"
    values = {"base": {0: "failed", 1: "failed"}, "rope": {0: 1.9, 1: 1.91}}
    j = judge(load(studies.write_study(tmp_path / "b", values).path))
    assert "one seed" not in explain(j)


@pytest.mark.parametrize("arm", ["rope", "base"])
@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        (("start", "duration"), None),
        (("start",), r"train\.decay\.duration"),
        ((), r"train\.decay: arm rope"),
    ],
)
def test_null_that_becomes_a_mapping_is_the_factor_where_all_its_keys_are(
    tmp_path: Path, arm: str, declared: tuple[str, ...], refused: str | None
) -> None:
    decay = {"start": "80%", "duration": "20%"}

    def change(name: str, seed: int, tree: dict[str, Any]) -> None:
        for key in [k for k in tree["train"] if k.startswith("decay")]:
            del tree["train"][key]
        tree["train"]["decay"] = decay if (name == "rope") == (arm == "rope") else None

    diff = {f"train.decay.{key}": [None, decay[key]] for key in declared}
    diffs = {"base": {}, "rope": diff, "bad": {"model.alibi": [False, True]}}
    study = studies.write_study(tmp_path / "s", VALUES, diffs=diffs, config_change=change)
    if refused is None:
        assert verdicts(study.path)["rope"] == "better"
    else:
        with pytest.raises(StudyError, match=refused):
            judge(load(study.path))


@pytest.mark.parametrize(
    ("name", "value"),
    [("data_fingerprint", "e" * 64), ("torch", "2.0.0"), ("device", "NVIDIA H200")],
)
def test_what_the_trials_recorded_must_be_the_same(tmp_path: Path, name: str, value: str) -> None:
    study = studies.write_study(
        tmp_path / "s", VALUES, summary=lambda arm, seed: {name: value} if arm == "rope" else {}
    )
    with pytest.raises(StudyError, match=f"^{name}: arm rope"):
        judge(load(study.path))


def test_another_token_stream_is_allowed_where_the_data_are_the_factor(tmp_path: Path) -> None:
    study = studies.write_study(
        tmp_path / "s",
        VALUES,
        summary=lambda arm, seed: {"data_fingerprint": arm},
        diffs={
            "base": {},
            "rope": {"data.corpus": ["kjv", "asv"]},
            "bad": {"data.corpus": ["kjv", "x"]},
        },
    )
    assert verdicts(study.path)["rope"] == "better"


def test_two_seeds_of_one_arm_must_share_their_configuration(tmp_path: Path) -> None:
    def change(arm: str, seed: int, tree: dict[str, Any]) -> None:
        if arm == "rope" and seed == 1:
            tree["train"]["batch_size"] = 4

    study = studies.write_study(tmp_path / "s", VALUES, config_change=change)
    with pytest.raises(StudyError, match=r"^train\.batch_size: two trials of arm rope"):
        judge(load(study.path))


def test_who_watches_and_where_it_runs_make_no_difference(tmp_path: Path) -> None:
    study = studies.write_study(
        tmp_path / "s", VALUES, config_change=_set("train", "checkpoint_every", 7)
    )
    assert verdicts(study.path)["rope"] == "better"


def test_pain_38_a_schedule_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", VALUES)
    trial = study.trials()[4]
    trial.write_state(trial.state().replace(step=39))
    with pytest.raises(StudyError, match=r"^steps: trial rope-s1.* 39 of 40"):
        judge(load(study.path))


def brackets(best: dict[str, float]) -> dict[str, dict[tuple[int, float], float]]:
    rates = (1e-3, 2e-3, 4e-3)
    return {
        arm: {
            (s, r): 2.0
            - 0.05 * (arm == "rope")
            + 0.1 * abs(np.log2(r / lr))
            + 0.001 * ((7 * s + i) % 3)
            for s in range(3)
            for r in rates
        }
        for i, (arm, lr) in enumerate(best.items())
    }


def test_each_arm_stands_at_its_own_best_learning_rate(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", brackets({"base": 2e-3, "rope": 2e-3}))
    j = judge(load(study.path))
    assert j.table["lr"].tolist() == [2e-3, 2e-3]
    assert j.table["verdict"].tolist() == ["baseline", "better"]
    assert len(j.chosen) == 6


def test_pain_36_a_best_learning_rate_at_the_edge_gives_no_verdict(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "a", brackets({"base": 2e-3, "rope": 4e-3, "x": 2e-3}))
    got = verdicts(study.path)
    assert got["rope"] == "edge"
    assert got["x"] != "edge"
    base = studies.write_study(tmp_path / "b", brackets({"base": 1e-3, "rope": 2e-3}))
    assert verdicts(base.path)["rope"] == "edge"


def test_speed_is_compared_at_the_rate_that_is_best_by_the_frozen_metric(tmp_path: Path) -> None:
    rates = {5e-4: 0.05, 1e-3: 0.0, 2e-3: 0.04}
    values = {
        arm: {(s, lr): 2.0 + worse + 0.001 * s for s in range(3) for lr, worse in rates.items()}
        for arm in ("base", "slow")
    }
    speeds = iter(np.random.default_rng(0).normal(1e5, 1e3, 18))  # fastest anywhere, by noise
    study = studies.write_study(
        tmp_path / "s", values, summary=lambda arm, seed: {"tokens_per_second": next(speeds)}
    )
    j = judge(load(study.path), metric="tokens_per_second")
    assert set(j.lrs["lr"]) == {1e-3}
    assert "edge" not in set(j.table["verdict"])
    assert any("best on the other seeds of its arm, by val/bpb" in note for note in j.notes)


def test_brackets_may_differ_from_arm_to_arm(tmp_path: Path) -> None:
    values = brackets({"base": 2e-3, "rope": 2e-3})
    values["lion"] = {(s, r / 10): v for (s, r), v in values["rope"].items()}
    values["fixed"] = {(s, 2e-3): v for (s, r), v in values["base"].items() if r == 2e-3}
    j = judge(load(studies.write_study(tmp_path / "s", values).path))
    assert j.table["lr"].tolist() == pytest.approx([2e-3, 2e-3, 2e-4, 2e-3])
    assert j.table["verdict"].tolist()[:3] == ["baseline", "better", "better"]
    assert j.table["seeds"].tolist() == [3, 3, 3, 3]


def test_a_seed_that_diverges_at_the_rate_the_others_choose_counts_as_diverged(
    tmp_path: Path,
) -> None:
    values: dict[str, Any] = brackets({"base": 2e-3, "rope": 2e-3})
    values["rope"][0, 2e-3] = "diverged"
    j = judge(load(studies.write_study(tmp_path / "s", values).path))
    assert j.table["diverged"].tolist()[1] == 1
    assert any("seeds disagree" in note for note in j.notes)


def test_the_seed_that_judges_has_no_say_in_its_learning_rate(tmp_path: Path) -> None:
    rates = (1e-3, 2e-3, 4e-3, 8e-3)
    noise = np.random.default_rng(3).normal(0, 0.05, (2, 40, 4))
    # Every rate is equally good and noise chooses: the best of four would look better than it is.
    values = {
        arm: {(s, r): 2.0 + noise[i, s, k] for s in range(40) for k, r in enumerate(rates)}
        for i, arm in enumerate(("base", "x"))
    }
    j = judge(load(studies.write_study(tmp_path / "s", values, steps=2).path))
    judged = j.values.groupby("arm")["value"].mean()
    each_best = np.mean([min(values["base"][s, r] for r in rates) for s in range(40)])
    assert judged["base"] == pytest.approx(2.0, abs=4 * 0.05 / np.sqrt(40))
    assert each_best < 2.0 - 0.03
    assert "best on the other seeds" in j.notes[0]


def looks(revision: int = 2) -> dict[str, Any]:
    decide = studies.DECIDE | {
        "spending": {
            "rule": "obrien_fleming",
            "looks": [2, 3, 6],
            "alpha_at_look": [0.001, 0.0305, 0.045],
        }
    }
    return {"decide": decide, "revision": revision, "history": [{}, {"what": "more seeds"}]}


def test_a_declared_look_is_confirmatory_at_its_own_level_and_any_other_is_not(
    tmp_path: Path,
) -> None:
    declared = judge(load(studies.write_study(tmp_path / "a", VALUES, manifest_extra=looks()).path))
    assert declared.exploratory == []
    assert declared.rule.alpha == 0.0305
    assert "Look 2 of 3" in declared.notes[0]
    five = studies.values(TRUTH, range(5))
    other = judge(load(studies.write_study(tmp_path / "b", five, manifest_extra=looks()).path))
    assert "unplanned look at 5 seeds" in other.exploratory[0]
    early = looks(revision=1)
    first = studies.write_study(
        tmp_path / "c", studies.values(TRUTH, range(2)), manifest_extra=early
    )
    assert judge(load(first.path)).rule.alpha == 0.001


@pytest.mark.parametrize("status", ["failed", "cancelled", "diverged"])
def test_a_declared_look_is_one_with_all_its_trials(tmp_path: Path, status: str) -> None:
    values = {a: dict(row) for a, row in VALUES.items()}
    values["bad"][1] = status
    j = judge(load(studies.write_study(tmp_path / "a", values, manifest_extra=looks()).path))
    assert j.rule.alpha == 0.0305
    looked = [note for note in j.notes if "Look 2 of 3" in note]
    if status == "diverged":  # finished, with a result
        assert (j.exploratory, len(looked)) == ([], 1)
    else:
        assert looked == []
        assert (
            f"look 2 of 3 (3 of 6 seeds) is not complete: of its 9 trials 1 {status}"
            in (j.exploratory[0])
        )


@pytest.mark.parametrize("status", ["failed", "cancelled", "diverged"])
def test_a_study_of_which_trials_were_cancelled_is_not_the_one_that_was_planned(
    tmp_path: Path, status: str
) -> None:
    """Who cancels a seed may have seen the others; a crash and a divergence are nobody's choice."""
    values = {a: dict(row) for a, row in VALUES.items()}
    values["bad"][1] = status
    study = studies.write_study(tmp_path / "a", values)
    j = judge(load(study.path))
    notes = dict(zip(j.table["arm"], j.table["note"], strict=True))
    marked = {arm for arm, note in notes.items() if f"1 of 3 trials {status}" in note}
    assert marked == (set() if status == "diverged" else {"bad"})
    if status != "cancelled":
        assert j.exploratory == []
        return
    (reason,) = j.exploratory
    (trial,) = [t["id"] for t in study.manifest()["trials"] if t["id"].startswith("bad-s1")]
    assert reason.startswith(f"1 of its 9 planned trials cancelled (for example {trial})")


def test_trials_that_went_on_by_other_kernels_are_named(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "a", VALUES)
    moved, stayed, _ = (study.trial(t["id"]) for t in study.manifest()["trials"][:3])
    for trial, kernel in ((moved, "sdpa"), (stayed, "math")):
        (attempt,) = trial.attempts()
        for step, kind, now in ((0, "start", "math"), (21, "resume", kernel)):
            facts = {"device": "cpu", "attention": {now: "the fastest"}, "compiled": True}
            attempt.append("events.jsonl", {"step": step, "kind": kind, **facts})
    (note,) = [n for n in judge(load(study.path)).notes if "undisturbed" in n]
    assert f"{moved.id} (from step 21 on: attention sdpa, before math)" in note
    assert stayed.id not in note


def test_what_a_revision_says_of_itself_counts(tmp_path: Path) -> None:
    said = {"what": "new arms", "exploratory": "the family of comparisons grew"}
    grown = {"revision": 2, "history": [{"exploratory": None}, said]}
    study = studies.write_study(tmp_path / "a", VALUES, manifest_extra=grown)
    assert judge(load(study.path)).exploratory == ["the family of comparisons grew"]
    code = [{"code": {"commit": "abc"}}, {"what": "", "code": {"commit": "def"}}]
    history = [entry | {"exploratory": None} for entry in code]
    study = studies.write_study(
        tmp_path / "b", VALUES, manifest_extra={"revision": 2, "history": history}
    )
    assert "abc to def" in judge(load(study.path)).exploratory[0]


def grown(looks: list[list[int]], *words: str) -> dict[str, Any]:
    """A manifest with a revision for each list of looks, made by these words."""
    notes = [{"revision": i + 1, "looks": seen} for i, seen in enumerate(looks)]
    for note, word in zip(notes[1:], words, strict=True):
        note |= {"what": f"more: {word}", "overrides": [word]}
    spending = {"rule": "obrien_fleming", "looks": [2, 3, 6], "alpha_at_look": [0.001, 0.03, 0.045]}
    rule = studies.DECIDE | {"spending": spending}
    return {"decide": rule, "revision": len(looks), "history": notes}


def test_an_earlier_look_is_judged_again_as_it_was(tmp_path: Path) -> None:
    six = studies.values(TRUTH, (5, 1, 7, 0, 2, 3))
    words = ("sweep.seeds=[5,1,7]", "sweep.seeds=[5,1,7,0,2,3]")
    manifest = grown([[2], [2, 3], [2, 3, 6]], *words)
    study = studies.write_study(tmp_path / "now" / "s", six, manifest_extra=manifest)
    for number, seeds, alpha in ((1, (5, 1), 0.001), (2, (5, 1, 7), 0.03)):
        then = {arm: {s: row[s] for s in seeds} for arm, row in six.items()}
        only = grown([[2], [2, 3]][:number], *words[: number - 1])
        path = tmp_path / str(number) / "s"
        expected = judge(load(studies.write_study(path, then, manifest_extra=only).path))
        j = judge(at_revision(load(study.path), number))
        assert (j.rule.alpha, j.exploratory) == (alpha, [])
        assert j.to_json() == expected.to_json()
        assert set(j.frames.curves["seed"]) == set(seeds)
    assert len(at_revision(load(study.path), 3).trials) == 18


def test_an_earlier_revision_that_cannot_be_told_is_refused(tmp_path: Path) -> None:
    manifest = grown([[3], [3, 3]], "sweep.factors.bias=[bias=none]")
    study = studies.write_study(tmp_path / "a", VALUES, manifest_extra=manifest)
    with pytest.raises(
        StudyError, match=r"study a did more than to add seeds \(more: sweep.factors"
    ):
        at_revision(load(study.path), 1)
    for number in (0, 3):
        with pytest.raises(ConfigError, match=rf"--revision={number}: .*revisions 1 to 2"):
            at_revision(load(study.path), number)


def test_the_margin_of_equivalence_may_be_wider_than_the_smallest_effect(tmp_path: Path) -> None:
    values = studies.values({"base": 0, "x": 0.006}, range(6), sd=0.001)
    narrow = studies.write_study(tmp_path / "a", values, decide=studies.DECIDE)
    wide = studies.DECIDE | {"smallest_effect": 0.01, "margin": 0.012}
    assert verdicts(narrow.path)["x"] == "worse"
    assert verdicts(studies.write_study(tmp_path / "b", values, decide=wide).path)["x"] == (
        "equivalent"
    )


def test_evaluation_sets_and_code_must_be_the_same(tmp_path: Path) -> None:
    held_out = _set("train", "validation_tokens", 4096)
    study = studies.write_study(tmp_path / "a", VALUES, config_change=held_out)
    with pytest.raises(StudyError, match=r"^train\.validation_tokens: arm rope"):
        judge(load(study.path))
    study = studies.write_study(
        tmp_path / "b", VALUES, summary=lambda arm, seed: {"code_version": f"v{arm == 'rope'}"}
    )
    with pytest.raises(StudyError, match=r"^code_version: arm rope"):
        judge(load(study.path))


def test_an_unknown_metric_names_those_that_were_recorded(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", VALUES)
    with pytest.raises(StudyError, match=r"^metric=val/bbp: .*val/loss, val/bpb"):
        judge(load(study.path), metric="val/bbp")


@pytest.mark.parametrize("key", ["alpha", "smallest_effect", "correction"])
def test_a_rule_that_makes_no_sense_is_refused_by_name(tmp_path: Path, key: str) -> None:
    wrong = {"alpha": 2, "smallest_effect": -1, "correction": "luck"}
    study = studies.write_study(tmp_path / "s", VALUES, decide=studies.DECIDE | {key: wrong[key]})
    with pytest.raises(ConfigError, match=rf"^decide\.{key}="):
        judge(load(study.path))
    assert issubclass(ConfigError, AblateError)


def test_a_study_of_a_single_arm_has_a_table_and_no_verdict(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", {"base": {0: 2.0, 1: 2.1}})
    assert verdicts(study.path) == {"base": "baseline"}
