"""`ablate launch sweep=NAME ...`: freezes the study and runs what is missing, here."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ablate.cli.arguments import Parser
from ablate.cli.progress import Lines, tell
from ablate.cli.running import conclude, missing_of, run_here
from ablate.cli.stack_view import stack_lines
from ablate.errors import ConfigError
from ablate.launch import budget
from ablate.launch.cancelling import unmark
from ablate.launch.retrying import RETRIED, mend_states, refuse_edited
from ablate.launch.room import check_fits_here, gpus_here
from ablate.launch.settings import remember_plan
from ablate.rundir import ENDED, StudyDir, TrialDir
from ablate.track.client import why_offline

if TYPE_CHECKING:
    from ablate.plan import Plan

__all__ = ["main"]

DESCRIPTION = """\
Freezes the sweep as a study and runs every trial that has not ended: here, several at once, or on
SLURM (cluster=slurm), where it says what it asks for, submits, and returns.
Stop it with Ctrl-C, kill it, launch it again as often as you like: what is finished stays, what was
interrupted goes on from its checkpoint, and nothing is run twice. Trials that failed are run again
by `ablate retry` only. Exit code 1 means that some trial failed; a diverged trial is a result,
and no failure."""

EXAMPLES = """\
  ablate launch sweep=hello                       the demo
  ablate launch sweep=hello --dry-run             what would run
  ablate launch sweep=hello cluster.workers=4     so many trials at once
  ablate launch sweep=hello study=hello-2 sweep.seeds=6
  ablate launch sweep=hello --retry-failed
  ablate launch hello                             what is missing of a frozen study (after extend)
  ablate launch sweep=hello cluster=slurm site=mine resources=gpu --dry-run
  ablate launch sweep=hello cluster=slurm cluster.max_gpu_hours=200 'cluster.notify="mail me"'
"""


def main(argv: Sequence[str]) -> int:
    """0 all ended (or, on SLURM, submitted), 1 some failed, 2 a wrong request, 130 interrupted
    (launch again to go on).
    """
    options = _parser().read(argv)
    from ablate.cli.asked import asked_plan
    from ablate.launch.freeze import freeze, mend_configs, study_of

    plan = asked_plan(options.overrides)
    offline = why_offline(plan.trials[0].config["track"])
    for note in [*plan.notes, *filter(None, [offline])]:
        tell(f"Note: {note}")
    for line in stack_lines(plan):
        tell(line)
    _refuse_force(plan)
    _refuse_hold(plan, options.hold)
    study, mended = study_of(plan), []
    if study.exists() and not options.dry_run:
        mended = mend_configs(plan)  # refuses another plan at once
        freeze(plan)
        mended += mend_states(study)
        for said in mended:
            print(f"ablate launch: {said}", file=sys.stderr)
    code = _launch(plan, study, options) or (1 if mended else 0)
    if options.json and not options.dry_run:
        from ablate.cli.overview import study_status

        print(json.dumps(study_status(study), indent=2))
    return code


def _launch(plan: Plan, study: StudyDir, options: argparse.Namespace) -> int:
    from ablate.launch.freeze import freeze
    from ablate.launch.preflight import check_runs_dir

    again = RETRIED if options.retry_failed else ()
    command = shlex.join(["ablate", "launch", *options.overrides])
    cluster = plan.trials[0].config["cluster"]
    missing = missing_of(study, again) if study.exists() else []
    if not options.dry_run:
        check_runs_dir(study.path.parent)
        if missing:
            refuse_edited(study, missing)
        budget.check(study, cluster["max_gpu_hours"], [t.id for t in missing])
        for trial in missing:
            if trial.live_state().status == "cancelled":
                unmark(trial)
    if cluster["name"] == "slurm":
        from ablate.launch.slurm.launch import launch_plan

        say = _say if options.json else print
        launch_plan(plan, command=command, again=again, dry_run=options.dry_run, hold=options.hold,
                    say=say)  # fmt: skip
        if not (options.dry_run and options.json):
            return 0
    if options.dry_run:
        _show_dry_run(plan, study, again, options.json)
        return 0
    if study.exists() and not missing:
        return conclude(study, None)
    if cluster["name"] == "debug":
        from ablate.launch.slurm.launch import debug_plan

        steps = plan.trials[0].config["train"]["steps"]
        done = debug_plan(
            plan, command=command, again=again, seer=lambda trial: Lines(trial.id, steps).see
        )
        return conclude(done, None)

    def prepare() -> list[list[TrialDir]]:
        frozen = freeze(plan, command)
        remember_plan(frozen, plan, command)
        found, pilot = missing_of(frozen, again), {trial.id for trial in plan.pilot_trials}
        first = [trial for trial in found if trial.id in pilot]
        return [first, [t for t in found if t.id not in pilot]] if first else [found]

    stopped = run_here(study, [arm.config for arm in plan.arms], prepare, again, _say_floor)
    return conclude(study, stopped)


def _say_floor(study: StudyDir) -> None:
    """What the pilot has measured, before the rest runs."""
    from ablate.cli.learning_view import learning_lines
    from ablate.plan import frozen_plan

    print(f"The pilot of {study.name} has run.", file=sys.stderr)
    for line in learning_lines(frozen_plan(study), before=False):
        print(line, file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show_dry_run(plan: Plan, study: StudyDir, again: Sequence[str], as_json: bool) -> None:
    from ablate.launch.freeze import differences
    from ablate.launch.local import workers_for

    states = {}
    if study.exists():
        found = differences(study.manifest(), plan.manifest())
        if found:
            said = f"Would be refused, {study.name} is frozen otherwise: {'; '.join(found)}."
            print(said, file=sys.stderr if as_json else sys.stdout)
        states = {t.id: t.live_state() for t in study.trials()}
    trials = []
    for planned in plan.trials:
        state = states.get(planned.id)
        status = state.status if state else "new"
        trials.append({"id": planned.id, "status": status,
                       "runs": status not in ENDED or status in again})  # fmt: skip
    if any(trial["runs"] for trial in trials):
        _check_fit(plan)
    if as_json:
        print(json.dumps({"study": study.name, "trials": trials}, indent=2))
        return
    for trial in trials:
        print(f"{'run ' if trial['runs'] else 'skip'}  {trial['status']:<10}{trial['id']}")
    run = sum(trial["runs"] for trial in trials)
    config = plan.trials[0].config
    gpus = gpus_here(config)
    workers = workers_for(config["cluster"]["workers"], config["train"]["threads"], gpus)
    where = f"{gpus} GPUs" if gpus > 1 else "the GPU" if gpus else "the CPU"
    print(
        f"{run} of {len(plan.trials)} trials would run, {workers} at once on {where}. "
        "Nothing was written."
    )


def _check_fit(plan: Plan) -> None:
    for arm in plan.arms:
        check_fits_here(arm.config, f"Arm {arm.name}")


def _refuse_force(plan: Plan) -> None:
    if plan.trials[0].config["force"]:
        remedy = "Launch another study (study=NAME), or force single trials with `ablate train`"
        raise ConfigError("force", True, "would repeat every finished trial of the study", remedy)


def _refuse_hold(plan: Plan, hold: bool) -> None:
    where = plan.trials[0].config["cluster"]["name"]
    if hold and where != "slurm":
        remedy = "Write cluster=slurm, or leave --hold out"
        raise ConfigError("cluster", where, "has no queue in which --hold could keep a job", remedy)


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
    parser.add_argument(
        "--json", action="store_true", help="one object on standard output: how the study stands"
    )
    parser.add_argument("--hold", action="store_true", help="slurm: submit the jobs held")
    parser.add_argument("--retry-failed", action="store_true", help="run failed trials again")
    return parser
