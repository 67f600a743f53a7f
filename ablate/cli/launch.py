"""`ablate launch sweep=NAME ...`: freezes the study and runs what is missing, here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import Parser
from ablate.cli.failures import INTERRUPTED
from ablate.cli.overview import counts_line, counts_of, trials_of
from ablate.errors import ConfigError
from ablate.rundir import ENDED, StudyDir, TrialDir

if TYPE_CHECKING:
    from ablate.plan import Plan

__all__ = ["main"]

DESCRIPTION = """\
Freezes the sweep as a study and runs every trial that has not ended, several at once.
Stop it with Ctrl-C, kill it, launch it again as often as you like: what is finished stays, what was
interrupted goes on from its checkpoint, and nothing is run twice. Trials that failed are run again
with --retry-failed only. Exit code 1 means that some trial failed; a diverged trial is a result,
and no failure."""

EXAMPLES = """\
  ablate launch sweep=hello                       the demo
  ablate launch sweep=hello --dry-run             what would run
  ablate launch sweep=hello cluster.workers=4     so many trials at once
  ablate launch sweep=hello study=hello-2 sweep.seeds=6
  ablate launch sweep=hello --retry-failed
  ablate launch hello                             what is missing of a frozen study (after extend)
  ablate launch sweep=hello cluster=slurm site=mine resources=gpu --dry-run
"""


def main(argv: Sequence[str]) -> int:
    """0 all ended, 1 some failed, 2 a wrong request, 130 interrupted (launch again to go on)."""
    options = _parser().read(argv)
    from ablate.cli.asked import asked_plan
    from ablate.launch.freeze import study_of

    plan = asked_plan(options.overrides)
    _refuse_force(plan)
    again = ("failed", "cancelled") if options.retry_failed else ()
    if plan.trials[0].config["cluster"]["name"] == "slurm":
        from ablate.launch.slurm.launch import launch_plan

        command = shlex.join(["ablate", "launch", *options.overrides])
        launch_plan(plan, command=command, again=again, dry_run=options.dry_run, hold=options.hold)
        return 0
    if options.dry_run:
        _show_dry_run(plan, study_of(plan), again)
        return 0
    study, stopped = _run(plan, again, shlex.join(["ablate", "launch", *options.overrides]))
    counts = counts_of(t["status"] for t in trials_of(study, study.manifest()))
    return _conclude(study, counts, stopped)


def _run(plan: Plan, again: Sequence[str], command: str) -> tuple[StudyDir, str | None]:
    from ablate.cli.watching import watcher_of
    from ablate.launch.freeze import freeze, study_of
    from ablate.launch.local import run_missing, workers_for
    from ablate.launch.pool import Pool
    from ablate.launch.preflight import check_data

    config = plan.trials[0].config
    if config["cluster"]["name"] == "debug":
        from ablate.launch.slurm.launch import debug_plan

        return debug_plan(plan, command=command, again=again), None
    known = study_of(plan)
    if known.exists():
        study = freeze(plan)  # refuses another plan at once
        if not _missing(study, again):
            return study, None
    with Pool() as pool:
        # Torch is imported over there while the data are prepared here.
        checked: list[Any] = []
        for arm in plan.arms:
            if arm.config["data"] not in checked:
                checked.append(arm.config["data"])
                check_data(arm.config, progress=True)
        pool.check([arm.config for arm in plan.arms])
        study = freeze(plan, command)
        gpus = range(pool.gpus()) if config["train"]["device"] in ("auto", "cuda") else ()
        workers = workers_for(config["cluster"]["workers"], config["train"]["threads"], len(gpus))
        trials = study.trials()
        pilot = {trial.id for trial in plan.pilot_trials}
        first = [trial for trial in trials if trial.id in pilot]
        stopped = None
        for phase in [first, trials] if pilot.intersection(_missing(study, again)) else [trials]:
            missing = _missing(study, again, phase)
            at_once = max(1, min(workers, len(missing)))
            with watcher_of(study, len(phase), len(missing), at_once) as watcher:
                stopped = run_missing(
                    phase, pool, workers=at_once, gpus=gpus, again=again, watcher=watcher
                )
            if stopped:
                break
            if phase is first:
                _say_floor(study)
    return study, stopped


def _say_floor(study: StudyDir) -> None:
    """What the pilot has measured, before the rest runs."""
    from ablate.cli.learning_view import learning_lines
    from ablate.plan import frozen_plan

    print(f"The pilot of {study.name} has run.", file=sys.stderr)
    for line in learning_lines(frozen_plan(study), before=False):
        print(line, file=sys.stderr)


def _missing(
    study: StudyDir, again: Sequence[str], trials: Sequence[TrialDir] | None = None
) -> list[str]:
    trials = study.trials() if trials is None else trials
    states = {t.id: t.live_state().status for t in trials}
    return [id for id, status in states.items() if status not in ENDED or status in again]


def _conclude(study: StudyDir, counts: dict[str, int], stopped: str | None) -> int:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    say(f"{study.name}: {counts_line(counts)}.")
    left = counts["pending"] + counts["preempted"] + counts["running"]
    if counts["failed"]:
        say(f"What failed: ablate logs {study.name}.")
        say("To run it again: the same launch with --retry-failed.")
    if left:
        say("To go on: the same launch again.")
    else:
        say(f"The verdicts: ablate report {study.name}")
    if stopped:
        return 143 if "SIGTERM" in stopped else INTERRUPTED
    return 1 if counts["failed"] or counts["cancelled"] or left else 0


def _show_dry_run(plan: Plan, study: StudyDir, again: Sequence[str]) -> None:
    from ablate.launch.freeze import differences
    from ablate.launch.local import workers_for

    states = {}
    if study.exists():
        found = differences(study.manifest(), plan.manifest())
        if found:
            print(f"Would be refused, {study.name} is frozen otherwise: {'; '.join(found)}.")
        states = {t.id: t.live_state() for t in study.trials()}
    run = 0
    for planned in plan.trials:
        state = states.get(planned.id)
        status = state.status if state else "new"
        runs = status not in ENDED or status in again
        run += runs
        print(f"{'run ' if runs else 'skip'}  {status:<10}{planned.id}")
    config = plan.trials[0].config
    workers = workers_for(config["cluster"]["workers"], config["train"]["threads"], 0)
    print(
        f"{run} of {len(plan.trials)} trials would run, {workers} at once on the CPU. "
        "Nothing was written."
    )


def _refuse_force(plan: Plan) -> None:
    if plan.trials[0].config["force"]:
        remedy = "Launch another study (study=NAME), or force single trials with `ablate train`"
        raise ConfigError("force", True, "would repeat every finished trial of the study", remedy)


def _parser() -> Parser:
    parser = Parser("launch", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="sweep=NAME (or a STUDY) and Hydra overrides",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would run, and write nothing"
    )
    parser.add_argument("--hold", action="store_true", help="slurm: submit the jobs held")
    parser.add_argument("--retry-failed", action="store_true", help="run failed trials again")
    return parser
