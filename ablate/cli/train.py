"""`ablate train ...`: one trial in this process, recorded in a study. With -m, a plain Hydra
multirun.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.cli.arguments import Parser
from ablate.cli.failures import INTERRUPTED
from ablate.cli.progress import progress_of_trial, why
from ablate.errors import AblateError, ConfigError, DivergedError, TrialError, TrialHeldError
from ablate.rundir import State, StudyDir, TrialDir
from ablate.track.client import FOLDER, choose_mode

__all__ = ["failure", "main", "recorded", "run_single"]

EXAMPLES = """\
  ablate train size=tiny                             a small model on the King James Bible
  ablate train size=tiny position=rope seed=1        another arm; it joins the same study
  ablate train size=tiny train.steps=500 study=try   a study of its own
  ablate train size=tiny data.path=my_texts/         your own text
  ablate train -m size=tiny position=rope,alibi seed=0,1    a Hydra multirun, recorded as a study
  ablate train -m hydra/launcher=slurm position=rope,alibi  its jobs on SLURM
  ablate train -m hydra/sweeper=ablate design=ladder size=tiny 'norm=choice(rms)' 'clip=choice(agc)'
  ablate report train                                what came out of it
"""

TERMINATED = 143


def main(argv: Sequence[str]) -> int:
    """0 done, 1 failed or diverged, 2 a wrong request, 130 interrupted (the same command
    continues).
    """
    from ablate.launch.processes import follow, leading
    from ablate.launch.ranks import rank_of

    options, rank = _parser().read(argv), rank_of()
    if options.multirun:
        if options.json:
            raise AblateError("--json is of one trial; of a multirun `ablate status STUDY --json`.")
        if rank.world_size > 1:
            reason = "each of these processes would run the whole multirun"
            remedy = "Start one process; hydra/launcher=slurm gives each trial those that it needs"
            raise ConfigError("WORLD_SIZE", rank.world_size, reason, remedy)
        from ablate.cli.multirun import run_multirun

        return run_multirun(options.overrides, dry_run=options.dry_run)
    if options.dry_run:
        raise AblateError("--dry-run belongs to a multirun: write -m, or leave it out.")
    if rank.rank > 0:
        return follow()
    with leading():
        return _train(options.overrides, options.json)


def _train(overrides: Sequence[str], as_json: bool) -> int:
    from ablate.launch.job import LEFT

    trial, state = run_single(overrides)
    if state.status == "preempted" and state.reason == LEFT:
        raise BrokenPipeError
    if as_json:
        facts = {k: getattr(state, k) for k in ("status", "reason", "step", "steps", "attempt")}
        told = {"study": trial.study_path.name, "id": trial.id, "path": str(trial.path), **facts}
        print(json.dumps({**told, "summary": trial.summary() or {}}, indent=2))
    else:
        print(_story(trial, state))
    if state.status == "failed":
        raise TrialError(failure(trial, state))
    if state.status == "preempted":
        print(f"ablate train: {state.reason}; the same command continues it.", file=sys.stderr)
        return TERMINATED if "SIGTERM" in (state.reason or "") else INTERRUPTED
    return DivergedError.exit_code if state.status == "diverged" else 0


def run_single(
    overrides: Sequence[str], *, common: Sequence[str] = (), of_sweep: bool = False
) -> tuple[TrialDir, State]:
    """Runs, continues or (where it is finished) only returns the trial that the overrides name.

    Args:
        overrides: Hydra's grammar.
        common: overrides that every trial of a multirun has; they do not make an arm.
        of_sweep: whether a sweep has planned the trial.

    Raises:
        AblateError: before anything is written, where the request is wrong.
    """
    trial, config = recorded(overrides, common=common, of_sweep=of_sweep)
    state = trial.live_state()
    if state.status in ("done", "diverged"):
        print(f"{trial.id} is finished; force=true runs it afresh.", file=sys.stderr)
        return trial, state

    from ablate.launch.job import FencedOffError, run_job
    from ablate.launch.retrying import RETRIED
    from ablate.launch.together import on_its_seat
    from ablate.track.client import why_offline

    if note := why_offline(config["track"]):
        print(f"Note: {note}", file=sys.stderr)
    stack = config["cluster"]["stack"]
    if (stack or 1) > 1 and not of_sweep:
        print("Note: cluster.stack has no effect on a single trial.", file=sys.stderr)
    try:
        with progress_of_trial(trial.id, config["train"]["steps"]) as progress:
            state = run_job(trial, again=RETRIED, on_row=progress.see, run=on_its_seat(stack))
    except FencedOffError:
        raise TrialHeldError(
            f"while this process stood still, another took over trial {trial.id} as a newer "
            "attempt, which counts. This one has stopped; the other goes on."
        ) from None
    newest = trial.newest_attempt()
    if newest is not None and (moved := newest.record().get("moved")):
        said = f"{trial.id} went on by other means ({moved})"
        print(f"Note: {said}: its bits are not those of an undisturbed run.", file=sys.stderr)
    return trial, state


def recorded(
    overrides: Sequence[str],
    *,
    common: Sequence[str] = (),
    of_sweep: bool = False,
    here: bool = True,
) -> tuple[TrialDir, dict[str, Any]]:
    """The trial's folder in its study, and the configuration asked for; `force` is done.

    Args:
        overrides: see `run_single`.
        common: see `run_single`.
        of_sweep: see `run_single`.
        here: whether it is to run on this machine, whose device is checked then.
    """
    from ablate.launch.freeze import mend_planned
    from ablate.launch.preflight import (
        check_data_of_all,
        check_runs_dir,
        check_training,
        freeze_data,
    )
    from ablate.launch.singles import record_single
    from ablate.plan import single_trial

    single = single_trial(overrides, common=common, of_sweep=of_sweep)
    config: dict[str, Any] = single.trial.config
    check_runs_dir(Path(config["runs_dir"]))
    study = StudyDir(Path(config["runs_dir"]) / single.study)
    texts = check_data_of_all([config], study)
    if here:
        from ablate.launch.processes import check
        from ablate.launch.ranks import rank_of

        check(config, rank_of().world_size)
        check_training(config, new=not study.trial(single.trial.id).path.exists())
    trial = record_single(single)
    if said := mend_planned(trial, config):
        print(f"ablate train: {trial.id}: {said}", file=sys.stderr)
    freeze_data(study, texts)
    if config["force"]:
        trial.set_aside()
    return trial, config


def _story(trial: TrialDir, state: State) -> str:
    lines = [f"{trial.id}: {state.status} at step {state.step} of {state.steps}"]
    if why(state) and state.status == "diverged":
        lines[0] += f" ({why(state)})"
    summary = trial.summary() or {}
    shown = [
        k
        for k in ("val/bpb", "val/loss", "train/loss", "tokens_per_second", "parameters")
        if k in summary
    ]
    lines += [f"  {key:<18}{_figure(summary[key])}" for key in shown]
    lines.append(f"  {'files':<18}{trial.path}")
    track = trial.config().get("track") or {}
    if track.get("name") == "wandb" and choose_mode(track["mode"], os.environ) == "offline":
        word = shlex.quote(trial.study_path.name)
        said = f"offline, in {trial.path / FOLDER}: `ablate sync {word}` sends it"
        lines.append(f"  {'wandb':<18}{said}")
    return "\n".join(lines)


def _figure(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.0f}"
        if value >= 1000
        else f"{value:.4f}"
    )


def failure(trial: TrialDir, state: State) -> str:
    """One sentence with the reason and where the traceback is."""
    newest = trial.newest_attempt()
    log = newest.log_path if newest else trial.path
    reason = (state.reason or "").rstrip(".")
    return (
        f"trial {trial.id} failed at step {state.step} ({state.outcome}): {reason}. "
        f"The traceback is in {log}."
    )


def _parser() -> Parser:
    parser = Parser(
        "train",
        description="Trains one configuration. Stopped anywhere, the same command goes on from\n"
        "there, bit for bit; a finished trial is shown, not repeated (force=true starts afresh).",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides: groups and values"
    )
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="a Hydra multirun over a=1,2,..."
    )
    parser.add_argument(
        "--json", action="store_true", help="how the trial ended, as one object on standard output"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with -m: say what would run; write nothing",
    )
    return parser
