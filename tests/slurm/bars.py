"""What dispatch may cost: seconds of a launch, of the verbs, and of a node around the training.

    python -m tests.slurm.bars

Prints a table; exit code 1 where a bar is missed. Needs root and Slurm. Each figure is the best of
a few, on a machine that does nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from slurm_box import Box, started, why_not
from timed_training import between
from user_code import small_trial

from ablate.rundir import StudyDir

SWEEP = """\
# @package _global_
sweep:
  question: How long does it take?
  baseline: []
  factors: {{{factor}}}
  seeds: {seeds}
"""
LAUNCH = """\
import sys, time
from ablate.launch.slurm.launch import launch_plan
from ablate.plan import plan_sweep
began = time.monotonic()
plan = plan_sweep(sys.argv[1:])
planned = time.monotonic()
launch_plan(plan, command="bars", hold=True, say=lambda text: None)
print(len(plan.trials), planned - began, time.monotonic() - planned)
"""
START = """\
import sys
from timed_training import RUNNER
from ablate.config.schema import ClusterConfig
from ablate.launch.freeze import freeze
from ablate.launch.local import run_missing
from ablate.launch.pool import Pool
from ablate.launch.slurm.submit import submit
from ablate.plan import plan_sweep
where, slots, *words = sys.argv[1:]
plan = plan_sweep(words)
study = freeze(plan, "bars")
if where == "local":
    with Pool(RUNNER) as pool:
        run_missing(study.trials(), pool, workers=int(slots))
else:
    cluster = ClusterConfig(**plan.trials[0].config["cluster"])
    submit(study, study.trials(), cluster, command="bars", runner=RUNNER)
"""
TRIALS = 1000


class Bars:
    def __init__(self, box: Box, folder: Path) -> None:
        self.box, self.folder, self.missed = box, folder, 0
        (folder / "sweeps").mkdir()
        levels = ", ".join(f"optim.weight_decay={i}e-3" for i in range(1, 100))
        self._sweep("thousand", f"decay: [{levels}]", 10)
        self._sweep("one", "position: [position=rope]", 1)
        self._sweep("many", "position: [position=rope]", 10)
        self.words = [*small_trial(folder, steps=200), "cluster=slurm", "resources=cpu"]

    def _sweep(self, name: str, factor: str, seeds: int) -> None:
        text = SWEEP.format(factor=factor, seeds=seeds)
        (self.folder / "sweeps" / f"{name}.yaml").write_text(text)

    def show(self, what: str, seconds: float, bar: float | None) -> None:
        self.missed += bar is not None and seconds > bar
        print(f"{what:<58}{seconds:8.3f} s" + (f"   bar {bar:g} s" if bar else ""), flush=True)

    def launch(self) -> None:
        words = ["-c", LAUNCH, "sweep=thousand", *self.words]
        trials, planned, submitted = self._python(*words).split()
        assert int(trials) == TRIALS, trials
        self.show(f"planning {trials} trials", float(planned), None)
        self.show("from the plan to the jobs in the queue", float(submitted), 10.0)

    def verbs(self) -> None:
        for words, bar in (
            (["--help"], 0.4),
            (["list"], 0.4),
            (["status", "one", "--files"], 0.4),
            (["status", "one"], None),
            (["status", "thousand"], 1.0),
        ):
            took = min(self._timed("-m", "ablate", *words) for _ in range(3))
            self.show(f"ablate {' '.join(words)}", took, bar)

    def starts(self) -> None:
        """Of trials in a sweep that runs: here, and packed into one allocation."""
        for where, slots in (("local", 1), ("slurm", 2)):
            self._python("-c", START, where, str(slots), "sweep=many", f"study={where}",
                         *self.words, f"cluster.pack={slots}", "cluster.heal=false",
                         "cluster.parallel=1", "train.steps=50")  # fmt: skip
            study = StudyDir(self.folder / "runs" / where)
            done: Callable[[], bool] = lambda s=study: all(  # noqa: E731
                t.state().status == "done" for t in s.trials()
            )
            self.box.until(done, 200)
            took = between(study.trials(), slots)
            self.show(f"from one trial's training to the next's, {where}, {slots} at once",
                      took, 0.1)  # fmt: skip

    def node(self) -> None:
        """From the first line of the batch script to the result, less what the loop took; and to
        the end of the script.
        """
        began, over = (f"date +%s.%N > {self.folder}/{w}-$SLURM_JOB_ID" for w in ("begun", "over"))
        setup = f"cluster.setup=['{began}','trap \"{over}\" EXIT']"
        self._python("-m", "ablate", "launch", "sweep=one", *self.words, setup,
                     "cluster.parallel=1", "cluster.heal=false")  # fmt: skip
        study = StudyDir(self.folder / "runs" / "one")
        done: Callable[[], bool] = lambda: all(t.state().status == "done" for t in study.trials())  # noqa: E731
        self.box.until(done, 120)
        self.box.until(lambda: not self.box.active(), 60)
        found, whole = [], []
        for trial in study.trials():
            (result,) = (study.path / "submitit").rglob(f"{trial.state().job_id}_0_result.pkl")
            record = trial.newest_attempt()
            assert record is not None
            raw = record.record()["step_id"].partition(".")[0]
            begun, ended = (
                float((self.folder / f"{word}-{raw}").read_text()) for word in ("begun", "over")
            )
            trained = (trial.summary() or {})["seconds"]
            found.append(result.stat().st_mtime - begun - trained)
            whole.append(ended - begun - trained)
        self.show("a node's time for a trial, over its training", min(found), 3.0)
        self.show("the same to the end of the job's script", min(whole), None)

    def _python(self, *words: str) -> str:
        return self.box.run(sys.executable, *words, cwd=self.folder, timeout=300)

    def _timed(self, *words: str) -> float:
        began = time.monotonic()
        self._python(*words)
        return time.monotonic() - began


def main() -> int:
    if reason := why_not():
        print(reason)
        return 2
    print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
    box = started()
    os.environ["SLURM_CONF"] = box.environment["SLURM_CONF"]
    try:
        with tempfile.TemporaryDirectory(prefix="ablate-bars-") as folder:
            bars = Bars(box, Path(folder))
            bars.node()
            bars.starts()
            bars.launch()
            bars.verbs()
            subprocess.run(["scancel", "-u", "root"], env=box.environment, check=False)
        return 1 if bars.missed else 0
    finally:
        box.down()


if __name__ == "__main__":
    sys.exit(main())
