"""Members of a stack are jobs like any other: killed, cancelled, held, and run again."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_training import make_study, make_trial, run

from ablate.config.compose import Composer
from ablate.errors import ConfigError
from ablate.launch.cancelling import cancel
from ablate.launch.forks import CRASHED, HELD, RAN
from ablate.launch.local import Quiet, Study, _take, run_missing
from ablate.launch.pool import Ended, Pool
from ablate.launch.stacks import Stacks
from ablate.launch.together import run_together
from ablate.plan import resolve
from ablate.plan.stacking import graph_of, reason_alone, stacking_of
from ablate.rundir import Attempt, StudyDir
from tests.train.tiny import with_sections

SEATED = "fake_training:run_seated"
PLAIN = {f"model.{kind}_dropout": 0.0 for kind in ("attention", "residual", "embedding")}


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    words = ["size=tiny", "model=olmo2", "track=local", *(f"{k}={v}" for k, v in PLAIN.items())]
    return resolve(Composer().compose(words))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": {"residual_dropout": 0.1}}, "dropout"),
        ({"parallel": {"name": "ddp"}}, "several processes"),
        ({"batching": {"name": "packed"}}, "batches differ"),
        ({"data": {"document_masking": True}}, "documents differ"),
        ({"precision": {"name": "fp16"}}, "scaler"),
        ({"train": {"compile": True}}, "compile"),
        ({"train": {"activation_checkpointing": "whole_layer"}}, "checkpointing"),
        ({"loss": {"chunk": 64}}, "loss.chunk"),
        ({"model": {"mlp_chunk": 64}}, "mlp_chunk"),
        ({"model": {"norm_noise": 0.1}}, "noise"),
        ({"model": {"position": "relative", "rope": False}}, "trained bias"),
        ({"model": {"flash_attention": True}}, "flash"),
        ({"model": {"activation_type": "torch.nn:ReLU"}}, "torch.nn:ReLU"),
    ],
    ids=str,
)
def test_what_cannot_be_stacked_says_why(change, word, base):
    assert reason_alone(base) is None
    reason = reason_alone(with_sections(base, change))
    assert reason is not None
    assert word in reason
    made = stacking_of([("a", base), ("b", with_sections(base, change)), ("c", base)], 4)
    assert made.stacks == [["a", "c"]]
    assert word in made.alone["b"]


def test_a_graph_is_what_the_model_computes(base):
    same = [
        {"seed": 9}, {"optim": {"lr": 1.0, "name": "lion"}}, {"model": {"init_fn": "mitchell"}},
        {"clip": {"name": "agc"}}, {"spikes": {"name": "rewind"}},
        {"schedule": {"name": "constant"}}, {"model": {"init_std": 0.1}},
        {"train": {"checkpoint_every": 7}},
    ]  # fmt: skip
    other = [
        {"model": {"d_model": 32}}, {"model": {"layer_norm_eps": 1e-3}}, {"train": {"steps": 7}},
        {"train": {"batch_size": 3}}, {"train": {"threads": 2}}, {"precision": {"name": "bf16"}},
        {"loss": {"z_loss": 1e-4}}, {"train": {"micro_batch_size": 4}},
    ]  # fmt: skip
    assert {graph_of(with_sections(base, change)) for change in same} == {graph_of(base)}
    graphs = {graph_of(with_sections(base, change)) for change in other}
    assert len(graphs | {graph_of(base)}) == len(other) + 1
    # A table of sines is scaled by the first weights, so there they are part of the graph.
    sines = with_sections(base, {"model": {"position": "sinusoidal", "rope": False}})
    assert graph_of(sines) != graph_of(with_sections(sines, {"model": {"init_std": 0.1}}))


def test_stacks_are_as_large_as_asked_and_one_left_over_is_alone(base):
    named = [(f"t{i}", {**base, "seed": i}) for i in range(7)]
    made = stacking_of(named, 3)
    assert made.stacks == [["t0", "t1", "t2"], ["t3", "t4", "t5"]]
    assert "no other trial" in made.alone["t6"]


@pytest.mark.parametrize(
    "words", [["cluster.stack=0"], ["cluster=debug", "cluster.stack=2"],
              ["cluster=slurm", "cluster.stack=4", "cluster.pack=2"]]
)  # fmt: skip
def test_a_stack_that_cannot_be_is_refused(words):
    with pytest.raises(ConfigError, match=r"cluster\.stack"):
        resolve(Composer().compose(["size=tiny", *words]))


# ---- jobs


class Watcher(Quiet):
    def __init__(self) -> None:
        self.states: dict[str, list[str]] = {}

    def ended(self, trial, state) -> None:
        self.states.setdefault(trial.id, []).append(state.status)


def launched(study: StudyDir, seats: list[str] | None, runner: str = SEATED, **arguments: Any):
    watcher = Watcher()
    ids = seats or [t.id for t in study.trials()]
    with Pool(runner) as pool:
        run_missing(
            study.trials(), pool, workers=1, watcher=watcher,
            stacks=Stacks(dict.fromkeys(ids, ids)), **arguments,
        )  # fmt: skip
    return watcher.states


def test_each_member_has_its_own_end(tmp_path):
    """One diverges, one fails, one ends well; one process, and a log for each."""
    path = tmp_path / "runs" / "s"
    trials = [
        make_trial(path, "good", seed=0, pause=0.05),
        make_trial(path, "wild", seed=0, fail_at=5, how="diverged", always=True),
        make_trial(path, "broken", seed=0, fail_at=7, how="code", always=True),
    ]
    states = launched(make_study(path, trials), None)
    assert [states[t.id][-1] for t in trials] == ["done", "diverged", "failed"]
    records = [t.newest_attempt().record() for t in trials]
    assert len({r["pid"] for r in records}) == 1
    for trial in trials:
        log = trial.newest_attempt().log_path.read_text()
        assert trial.id in log
        assert all(other.id not in log for other in trials if other.id != trial.id)
    assert "division" in trials[2].newest_attempt().log_path.read_text()
    assert "division" not in trials[0].newest_attempt().log_path.read_text()


def test_one_that_is_held_is_waited_for_and_the_others_run(tmp_path):
    path = tmp_path / "runs" / "s"
    trials = [make_trial(path, "a", seed=i) for i in range(2)]
    study = make_study(path, trials)
    held = trials[1].acquire()  # by this process, which lives
    states = launched(study, None, patience=3.0)
    assert states[trials[0].id] == ["done"]
    assert trials[1].live_state().status == "running"
    held.release(trials[1].state().replace(status="preempted"))
    assert launched(study, None)[trials[1].id] == ["done"]


def test_one_that_is_held_is_waited_for_also_where_another_crashes(tmp_path):
    path = tmp_path / "runs" / "s"
    trials = [
        make_trial(path, "a", seed=0, fail_at=3, how="crash", always=True),
        make_trial(path, "a", seed=1),
        make_trial(path, "a", seed=2),
    ]
    study = make_study(path, trials)
    held = trials[1].acquire()  # by this process, which lives
    held.heartbeat()
    with Pool(SEATED) as pool:
        # As when another launch takes it after this one has looked.
        pool.start(trials, seats=[t.id for t in trials])
        ends = {}
        while pool.running:
            ends |= {end.trial.id: end.code for end in pool.wait(0.2)}
    assert [ends[t.id] for t in trials] == [CRASHED, HELD, RAN]
    watcher = Watcher()
    with Pool(SEATED) as pool:
        queue = Study(queue=deque())
        for trial in trials:
            _take(queue, pool, Ended(trial, ends[trial.id]), watcher)
    assert queue.elsewhere == [trials[1]]
    assert [watcher.states.get(t.id) for t in trials] == [["failed"], None, ["done"]]
    assert study.trial(trials[1].id).live_state().status == "running"


def test_each_log_has_what_the_trial_and_its_threads_said_and_warned(tmp_path, monkeypatch):
    """Also after another member has ended, and nothing of the others."""
    path = tmp_path / "runs" / "s"
    trials = [make_trial(path, name, steps=3) for name in ("short", "long")]
    first_is_over = threading.Event()
    beat = Attempt.heartbeat

    def heard(attempt: Attempt) -> None:
        beat(attempt)
        logging.getLogger("ablate").warning("a beat of %s.", attempt.trial.id)

    def train(attempt, config, *, seat, **arguments):
        id = attempt.trial.id
        warnings.warn(f"begun: {id}.", stacklevel=1)
        if id == trials[1].id:
            assert first_is_over.wait(60)
        warnings.warn(f"warned: {id}.", stacklevel=1)
        with ThreadPoolExecutor(1, f"{threading.current_thread().name}/loader") as loader:
            loader.submit(logging.getLogger("data").info, "loaded: %s.", id).result()
        time.sleep(0.2)  # for the heart
        stranger = threading.Thread(target=logging.info, args=("a stranger of %s.", id))
        stranger.start()
        stranger.join()
        return run(attempt, config, **arguments)

    def wait() -> None:
        while trials[0].state().status != "done":
            time.sleep(0.02)
        time.sleep(0.1)  # its log is closed after its state is written
        first_is_over.set()

    make_study(path, trials)
    monkeypatch.setattr(Attempt, "heartbeat", heard)
    monkeypatch.setattr("ablate.launch.job.BEAT_SECONDS", 0.02)
    shown, level = warnings.showwarning, logging.getLogger().level
    watcher = threading.Thread(target=wait)
    watcher.start()
    ends = run_together(trials, [t.id for t in trials], run=train)
    watcher.join()
    assert ends == [None, None]
    assert (warnings.showwarning, logging.getLogger().level) == (shown, level)
    for own, other in (trials, trials[::-1]):
        log = own.newest_attempt().log_path.read_text()
        for said in ("begun: {}.", "warned: {}.", "loaded: {}.", "a beat of {}."):
            assert said.format(own.id) in log
            assert said.format(other.id) not in log
        assert f"a stranger of {own.id}." in log


def test_a_cancelled_member_leaves_and_the_others_go_on(tmp_path):
    path = tmp_path / "runs" / "s"
    trials = [make_trial(path, "a", steps=100, seed=i, pause=0.06) for i in range(2)]
    study = make_study(path, trials)
    (trials[0].path / "cancel").touch()
    assert trials[0].cancel_asked()
    states = launched(study, None)
    assert states[trials[0].id] == ["cancelled"]
    assert states[trials[1].id] == ["done"]


def test_a_running_member_is_cancelled_without_the_others(tmp_path):
    """Their process is one, so it is sent no signal."""
    path = tmp_path / "runs" / "s"
    trials = [make_trial(path, "a", steps=80, seed=i, pause=0.06) for i in range(3)]
    study, ids = make_study(path, trials), [t.id for t in trials]

    class Canceller(Watcher):
        done: Any = None

        def tick(self, running) -> None:
            row = trials[1].latest_row()
            if self.done is None and row and row["step"] > 2:
                self.done = cancel(study, [ids[1]], None)

    watcher = Canceller()
    with Pool(SEATED) as pool:
        run_missing(
            trials, pool, workers=1, watcher=watcher, stacks=Stacks(dict.fromkeys(ids, ids))
        )
    assert watcher.done.asked == [ids[1]]
    assert [watcher.states[id] for id in ids] == [["done"], ["cancelled"], ["done"]]
    assert trials[1].live_state().step < 80


def test_trials_that_are_not_stacked_fill_the_places_beside_a_stack(tmp_path):
    """In an allocation of four: a stack of two, and two beside it; whatever they wait in the queue
    behind.
    """
    path = tmp_path / "runs" / "s"
    alone = [make_trial(path, "alone", steps=20, seed=i, pause=0.04) for i in range(4)]
    pair = [make_trial(path, "pair", steps=20, seed=i, pause=0.04) for i in range(2)]
    trials = [*alone[:3], *pair, alone[3]]
    study, ids = make_study(path, trials), [t.id for t in pair]
    at_once: list[set[str]] = []

    class Counter(Watcher):
        def tick(self, running) -> None:
            at_once.append({t.id for t in running})

    with Pool(SEATED) as pool:
        run_missing(
            study.trials(), pool, workers=4, places=4, watcher=Counter(),
            stacks=Stacks(dict.fromkeys(ids, ids)),
        )  # fmt: skip
    assert [t.live_state().status for t in trials] == ["done"] * 6
    assert max(map(len, at_once)) == 4
    assert {t.id for t in alone} in at_once, "there is room for one, and not for the stack"
    assert all(not (set(ids) & found) or set(ids) <= found for found in at_once)


def test_a_signal_stops_every_member_with_a_checkpoint_of_its_own(tmp_path):
    path = tmp_path / "runs" / "s"
    trials = [
        make_trial(path, "asks", steps=200, pause=0.03, signal_at=5),
        make_trial(path, "hears", steps=200, pause=0.03),
    ]
    launched(make_study(path, trials), None)
    for trial in trials:
        state = trial.live_state()
        assert (state.status, state.reason) == ("preempted", "stopped by SIGTERM")
        assert trial.newest_checkpoint()[1] == state.step > 0
