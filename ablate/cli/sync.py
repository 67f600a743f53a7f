"""`ablate sync STUDY`: mirrors a study to wandb, one run a trial; done again, nothing changes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.cli.arguments import Parser, reading_parser, take_runs_dir
from ablate.cli.progress import Counted
from ablate.errors import AblateError
from ablate.rundir import StudyDir, find_study
from ablate.track.client import require_key
from ablate.track.facts import LONGEST_NAME, rows_of
from ablate.track.sync import Copied, Request, Synced, plan_sync, sync_study
from ablate.track.workspace import require_workspaces, save_view

__all__ = ["main"]

EXAMPLES = """\
  ablate sync hello                          to wandb, with the verdicts; again whenever you like
  ablate sync hello --dry-run                what would be sent; asks nobody
  ablate sync hello --offline                one fresh offline run a trial, for `wandb sync`
  ablate sync hello --workspace              and a saved view that compares the arms
  ablate sync hello --entity team --project ablations
"""
COLUMNS = ("verdict", "difference", "low", "high", "p", "reference")


def main(argv: Sequence[str]) -> int:
    """0; 1 where files of a trial are damaged."""
    options = _parser().read(argv)
    words = take_runs_dir(options, options.words)
    if len(words) != 1:
        raise AblateError("name one study: `ablate sync STUDY`. `ablate list` shows them.")
    study = find_study(words[0], options.runs_dir)
    mode = _mode(options)
    if options.workspace:
        if mode == "offline":
            raise AblateError(
                "--workspace saves a view on wandb's server, and --offline asks for none."
            )
        require_workspaces()
    verdicts, why_not, metric = _verdicts(study)
    request = Request(
        offline=mode == "offline",
        project=options.project,
        entity=options.entity,
        columns=verdicts,
    )
    if options.dry_run:
        planned = plan_sync(study, request)
        _show_plan(planned, options.json, why_not)
        return _said(planned)
    if not request.offline:
        require_key()
    logging.raiseExceptions = False  # wandb's log on a full disk would print tracebacks
    synced = _sync(study, request)
    view = _save_view(study, synced, metric) if options.workspace else None
    if options.json:
        extra = {"workspace": view, "verdicts": why_not is None, "note": why_not}
        print(json.dumps({**synced.to_json(), **extra}, indent=2))
    else:
        _show(synced, why_not, view)
    return _said(synced)


def _said(synced: Synced) -> int:
    """Names the trials that cannot be read: 1 where there are any."""
    for said in synced.damages:
        print(f"ablate sync: {said}", file=sys.stderr)
    return 1 if synced.damages else 0


def _parser() -> Parser:
    parser = reading_parser("sync", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="STUDY", help="a study's name or folder")
    parser.add_argument("--dry-run", action="store_true", help="show it, send nothing")
    parser.add_argument(
        "--offline", action="store_true", help="write offline runs into the study instead"
    )
    parser.add_argument("--project", help="in place of the trials' track.project")
    parser.add_argument("--entity", help="in place of the trials' track.entity")
    parser.add_argument("--workspace", action="store_true", help="save a view of the study")
    return parser


def _mode(options: argparse.Namespace) -> str:
    for name in ("project", "entity"):
        value = getattr(options, name)
        if value is not None and (
            not value.strip() or len(value) > 128 or set(value) & set("/\\#?%:")
        ):
            raise AblateError(
                f"--{name} {value!r}: wandb takes 1 to 128 characters without / \\ # ? % and :."
            )
    wanted = os.environ.get("WANDB_MODE")
    if options.offline or wanted == "offline":
        return "offline"
    if wanted == "disabled":
        raise AblateError("WANDB_MODE=disabled switches wandb off. Unset it, or use --offline.")
    return "online"


def _verdicts(study: StudyDir) -> tuple[Mapping[str, Mapping[str, Any]], str | None, str]:
    """Trial -> columns of its summary; why there are none; the metric that decides."""
    manifest = study.manifest()  # a damaged one is found before the seconds that imports take
    from ablate.analysis.frames import load
    from ablate.analysis.judgement import judge

    metric = str((manifest.get("decide") or {}).get("metric") or "val/bpb")
    try:
        judgement = judge(load(study.path, curves=False))
    except AblateError as error:
        return {}, str(error), metric
    rows = {row["arm"]: row for row in judgement.to_json()["arms"]}
    columns: dict[str, dict[str, Any]] = {}
    for entry in manifest.get("trials", []):
        row = rows.get(entry["arm"])
        if row is None:
            continue
        told = {
            "verdict" if key == "verdict" else f"verdict/{key}": row[key]
            for key in COLUMNS
            if row.get(key) is not None
        }
        if judgement.exploratory:
            told["verdict/exploratory"] = True
        columns[entry["id"]] = told
    return columns, None, judgement.rule.metric


def _sync(study: StudyDir, request: Request) -> Synced:
    trials = len(study.manifest().get("trials", []))
    with Counted("to wandb" if not request.offline else "offline runs", trials) as progress:

        def see(run: Copied) -> None:
            said = f"{run.trial}: {run.action}"
            said += f", {run.rows:,} rows" if run.rows else ""
            progress.advance(said + (f" ({run.reason})" if run.reason else ""))

        return sync_study(study, request, on_run=see)


def _save_view(study: StudyDir, synced: Synced, metric: str) -> str:
    manifest = study.manifest()
    factors = {f for arm in manifest.get("arms", []) for f in arm.get("levels") or {}}
    measured: dict[str, None] = {}
    for run in (run for run in synced.runs if run.action != "damaged"):
        for row in rows_of(study.trial(run.trial)):
            measured.update(dict.fromkeys(row))
        if measured:
            break
    group = str(manifest.get("study") or study.name)[:LONGEST_NAME]
    return save_view(
        group,
        created=manifest.get("created"),
        entity=synced.entity,
        project=synced.project,
        metric=metric,
        factors=sorted(factors),
        measured=list(measured),
    )


def _show_plan(synced: Synced, as_json: bool, why_not: str | None) -> None:
    if as_json:
        print(json.dumps({**synced.to_json(), "dry_run": True, "note": why_not}, indent=2))
        return
    where = (
        "offline runs"
        if synced.mode == "offline"
        else f"{synced.entity or '(you)'}/{synced.project}"
    )
    print(f"{synced.study} to {where}, one run a trial:")
    for run in synced.runs:
        left = run.action in ("skipped", "damaged")
        said = f"{run.action}: {run.reason}" if left else run.status
        print(f"  {run.id}  {run.trial}  {said}")
    print(f"Without verdicts: {why_not}" if why_not else "With the verdict of each arm.")
    print("Nothing was sent (--dry-run).")


def _show(synced: Synced, why_not: str | None, view: str | None) -> None:
    counts = ", ".join(f"{n} {action}" for action, n in sorted(synced.counts.items()))
    print(f"{synced.study}: {counts or 'no trials'}.")
    for run in synced.runs:
        if run.superseded:
            print(
                f"{run.trial}: {run.superseded} steps were trained twice with different losses; "
                "wandb may keep the first ones, the local record has those that count."
            )
    if why_not:
        print(f"Without verdicts: {why_not}")
    pages = [run.url for run in synced.runs if run.url]
    if synced.mode == "offline":
        folders = sum(run.action in ("created", "replaced", "unchanged") for run in synced.runs)
        if folders and pages:
            print(f"Where there is a network: wandb sync {_glob(pages[0])}")
    elif pages:
        print(f"Runs: {pages[0].rpartition('/runs/')[0]}/groups/{synced.study}")
    if view:
        print(f"View: {view}")


def _glob(folder: str) -> str:
    """All offline runs of the study, from the folder of one."""
    trials = folder.split(os.sep)
    at = len(trials) - 3  # trials/<id>/wandb/offline-run-...
    return os.sep.join([*trials[:at], "*", "wandb", "offline-run-*"])
