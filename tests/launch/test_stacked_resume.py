"""Members of a stack that is continued, in whatever way: on their seats, or it is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fake_training import make_study

from ablate.config.compose import Composer
from ablate.config.fingerprint import trial_id
from ablate.errors import TrialHeldError
from ablate.launch.job import run_job
from ablate.launch.local import Quiet, run_missing
from ablate.launch.pool import Pool
from ablate.launch.stacks import Stacks
from ablate.launch.together import on_its_seat, run_together
from ablate.plan import resolve
from ablate.plan.stacking import stacking_of
from ablate.rundir import StudyDir, TrialDir
from tests.train.tiny import MODEL, section_data, without_clock, write_text

PLAIN = {f"model.{kind}_dropout": 0.0 for kind in ("attention", "residual", "embedding")}


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    words = ["size=tiny", "model=olmo2", "track=local", *(f"{k}={v}" for k, v in PLAIN.items())]
    return resolve(Composer().compose(words))


def begun(trial: TrialDir, seats: list[str] | None, *, row: bool = True) -> None:
    """An attempt that was killed, as a member of a stack or alone."""
    attempt = trial.acquire()
    if seats is not None:
        attempt.note(seats=seats, stacked=len(seats), seat=seats.index(trial.id))
    if row:
        attempt.append("metrics.jsonl", {"step": 1, "train/loss": 1.0})
    attempt.release(trial.state().replace(status="preempted"))


def test_who_has_begun_keeps_its_seat_or_stays_alone(base, tmp_path):
    study = StudyDir(tmp_path / "runs" / "s")
    trials = [study.trial(name) for name in "abcdef"]
    for i, trial in enumerate(trials):
        trial.create({**base, "seed": i}, 20)
    a, b, c, d, e, f = trials
    begun(a, ["a", "b", "gone"])
    begun(b, ["a", "b", "gone"], row=False)  # no row came of it
    begun(c, None)
    begun(d, ["d", "x"], row=False)
    kept = {"a": ("a", "b", "gone"), "b": ("a", "b", "gone"), "c": ("c",)}
    for size, rest in [
        (None, {id: (id,) for id in "def"}),
        (2, {"d": ("d", "e"), "e": ("d", "e"), "f": ("f",)}),
        (8, dict.fromkeys("def", ("d", "e", "f"))),
    ]:
        stacks = Stacks.of(trials, size)
        assert {t.id: stacks.seats(t) for t in trials} == kept | rest
    stacks = Stacks.of(trials, 2)
    assert stacks.mates(a, [f, b, c]) == [b]
    assert stacks.groups("fabcde") == [["f"], ["a", "b"], ["c"], ["d", "e"]]
    planned = stacking_of([(t.id, t.config()) for t in trials], 4)  # a to d, e and f
    seats = Stacks.of(trials, 4, planned).seats
    assert [seats(t) for t in (b, c, d, e)] == [("a", "b", "gone"), ("c",), ("d",), ("e", "f")]
    assert all(Stacks.of(trials, 1).seats(t) == (t.id,) for t in trials)


def test_a_damaged_file_is_the_trouble_of_its_own_trial(base, tmp_path):
    study = StudyDir(tmp_path / "runs" / "s")
    trials = [study.trial(name) for name in "abcd"]
    for i, trial in enumerate(trials):
        trial.create({**base, "seed": i}, 20)
    begun(trials[0], ["a", "b"])
    (trials[0].newest_attempt().path / "attempt.json").write_text("{")
    (trials[1].path / "config.yaml").unlink()
    assert Stacks.of(trials, 4).groups("abcd") == [["a"], ["b"], ["c", "d"]]


def study_of_seeds(path: Path, text: Path, steps: int = 40) -> StudyDir:
    still = {k.partition(".")[2]: v for k, v in PLAIN.items()}
    base = {
        "model": {**MODEL, **still},
        "data": section_data(text),
        "train": {
            "steps": steps,
            "batch_size": 2,
            "validation_tokens": 100,
            "checkpoint_every": 10,
        },
    }
    study = StudyDir(path)
    trials = []
    for i in range(3):
        config = {"seed": i, **base, "optim": {"lr": 1e-3 * (i + 1)}}
        trial = study.trial(trial_id("arm", config))
        trial.create(config, steps)
        trials.append(trial)
    return make_study(path, trials)


def curve(trial: TrialDir) -> list[dict[str, Any]]:
    return [without_clock(r) for r in trial.stitched()]


def test_killed_in_the_middle_a_stack_goes_on_bit_for_bit(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    write_text(text)
    whole = study_of_seeds(tmp_path / "runs" / "whole", text)
    parts = study_of_seeds(tmp_path / "runs" / "parts", text)
    ids = [t.id for t in whole.trials()]

    class Killer(Quiet):
        killed = False

        def tick(self, running) -> None:
            first = parts.trials()[0]
            attempt = first.newest_attempt()
            row = first.latest_row()
            if not self.killed and attempt is not None and row and row["step"] >= 12:
                os.kill(attempt.record()["pid"], signal.SIGKILL)
                self.killed = True

    killer = Killer()
    for study, watcher in ((whole, Quiet()), (parts, killer)):
        with Pool("ablate.train:run_trial") as pool:
            run_missing(
                study.trials(), pool, workers=1, watcher=watcher,
                stacks=Stacks(dict.fromkeys(ids, ids)),
            )  # fmt: skip
    assert killer.killed
    for a, b in zip(parts.trials(), whole.trials(), strict=True):
        assert a.live_state().status == "done"
        assert len(a.attempts()) == 2
        assert curve(a) == curve(b)
        assert a.summary()["stacked"] == 3
    # A trial that has begun keeps its seats, and one that began alone stays alone.
    again = Stacks.of(parts.trials(), 8)
    assert all(again.seats(t) == tuple(ids) for t in parts.trials())


def stopping_after(steps: int, train: Any) -> Any:
    """Stops the trial after so many steps of this attempt."""

    def run_so_far(attempt, config, **arguments):
        left = iter([None] * (steps - 1))
        arguments["should_stop"] = lambda: next(left, "enough")
        return train(attempt, config, **arguments)

    return run_so_far


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[TrialDir]:
    """Three trials that were stacked, undisturbed."""
    from ablate.train import run_trial

    folder = tmp_path_factory.mktemp("whole")
    text = folder / "text"
    text.mkdir()
    write_text(text)
    trials = study_of_seeds(folder / "runs" / "whole", text, 20).trials()
    assert run_together(trials, [t.id for t in trials], run=run_trial) == [None] * 3
    return trials


def another(whole: list[TrialDir], path: Path) -> list[TrialDir]:
    """The same trials, which have not begun."""
    return study_of_seeds(path / "runs" / "s", whole[0].study_path.parents[1] / "text", 20).trials()


def test_one_that_was_held_sits_down_later_and_keeps_its_record(whole, tmp_path):
    """Where its stack has begun without it: on its own seat, so with the bits of all together."""
    from ablate.train import run_trial

    trials, ids = another(whole, tmp_path), [t.id for t in whole]
    held = trials[1].acquire()  # by this process, which lives
    ends = run_together(trials, ids, run=run_trial)
    assert [type(end) for end in ends] == [type(None), TrialHeldError, type(None)]
    assert trials[1].live_state().status == "running"
    held.release(trials[1].state().replace(status="preempted"))
    for size in (None, 2, 3):
        assert Stacks.of(trials, size).seats(trials[1]) == tuple(ids)
    for stop in (7, 20):
        run_together([trials[1]], ids, run=stopping_after(stop, run_trial))
    for trial, same in zip(trials, whole, strict=True):
        assert trial.live_state().status == "done"
        assert curve(trial) == curve(same)
        assert "restacked" not in trial.summary()
    assert [len(t.attempts()) for t in trials] == [1, 3, 1]


def test_a_member_goes_on_by_itself_on_its_seat_or_says_that_it_left_it(whole, tmp_path):
    from ablate.train import run_trial

    parts, plain = another(whole, tmp_path / "parts"), another(whole, tmp_path / "plain")
    ids = [t.id for t in whole]
    assert run_together(parts, ids, run=stopping_after(12, run_trial)) == [None] * 3
    kept, left, joined = parts[0], parts[1], plain[2]

    assert run_job(kept, run=on_its_seat(None)).status == "done"
    assert curve(kept) == curve(whole[0])
    assert kept.newest_attempt().record()["seats"] == ids
    assert (kept.summary()["stacked"], "restacked" in kept.summary()) == (3, False)

    assert run_job(left, run=on_its_seat(1)).status == "done"  # cluster.stack=1
    assert run_job(joined, run=stopping_after(12, on_its_seat(None))).status == "preempted"
    assert Stacks.of([*parts[2:], joined], 8).seats(joined) == (joined.id,)
    run_together([joined], ids, run=run_trial)  # which no launch does
    for trial, widths in ((left, [3, 1]), (joined, [1, 3])):
        (resumed,) = [e for e in trial.stitched("events.jsonl") if e["kind"] == "resume"]
        attempt = trial.newest_attempt()
        assert resumed["restacked"] == attempt.record()["restacked"] == widths
        assert (trial.summary()["restacked"], trial.summary()["stacked"]) == (widths, 3)
        assert "its curve is that of neither" in attempt.log_path.read_text()
        assert trial.summary()["mfu"] is None
        same = whole[parts.index(trial)] if trial in parts else whole[2]
        pairs = list(zip(curve(trial), curve(same), strict=True))
        assert len(pairs) == 20
        assert all(a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-5) for a, b in pairs)
        assert (curve(trial)[:12] == curve(same)[:12]) == (trial is left)


def test_ablate_train_goes_on_with_a_member_of_a_stack(tmp_path, monkeypatch, capsys):
    from ablate.cli.train import recorded, run_single
    from ablate.train import run_trial

    monkeypatch.chdir(tmp_path)
    words = ["size=tiny", "model=olmo2", "train.steps=4", "train.validation_tokens=500",
             *(f"{k}={v}" for k, v in PLAIN.items())]  # fmt: skip
    asked = [[*words, f"seed={i}"] for i in range(2)]
    trials = [recorded(own)[0] for own in asked]
    ids = [t.id for t in trials]
    run_together(trials, ids, run=stopping_after(2, run_trial))
    assert [t.live_state().step for t in trials] == [2, 2]
    trial, state = run_single(asked[1])
    assert (trial.id, state.status) == (ids[1], "done")
    assert trial.newest_attempt().record()["seats"] == ids
    assert "restacked" not in trial.summary()
    trial, state = run_single([*asked[0], "cluster.stack=1"])
    assert (trial.id, state.status) == (ids[0], "done")
    assert trial.summary()["restacked"] == [2, 1]
