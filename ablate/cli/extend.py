"""`ablate extend STUDY sweep.seeds=6`: more seeds or arms, as a revision of the manifest."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import reading_parser
from ablate.errors import AblateError, StudyError
from ablate.launch.cancelling import mark, unmark
from ablate.launch.settings import remember, remembered
from ablate.rundir import ENDED, StudyDir, find_study

if TYPE_CHECKING:
    from ablate.plan.extension import Extension

__all__ = ["main"]

DESCRIPTION = """\
Adds seeds or arms to a study. What has run stays as it is, the decision rule too; the manifest gets
a new revision, whose history says which look at the data this is. Where the sweep declared its
looks (sweep.decide.spending: [3, 6]), the verdicts stay confirmatory at the level of the look;
otherwise the result is marked exploratory, since adding seeds until it pleases is optional
stopping. Nothing runs yet: `ablate launch STUDY` runs what is missing.

--replace plans an arm anew whose code (or YAML) was edited: its old trials leave the study and stay
on disk; where any of them had a result, the study is exploratory from then on.

--adopt writes the next round of a sequential search as a sweep of its own (sweeps/STUDY-2.yaml):
the arm is its baseline, the remaining factors are its arms, and the seeds are fresh ones."""

EXAMPLES = """\
  ablate extend hello sweep.seeds=6                        three more seeds for every arm
  ablate extend hello sweep.seeds=6 --dry-run              what would be added
  ablate extend hello 'sweep.factors.bias=["bias=none"]'   one more factor
  ablate extend mine --replace norm-mine                   this arm, as its code is now
  ablate extend hello --adopt +qk_norm                     the next round, on top of this arm
"""


def main(argv: Sequence[str]) -> int:
    """0 where the study holds what was asked for; errors are raised as AblateError (exit 2)."""
    parser = reading_parser("extend", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("study", metavar="STUDY", help="a name, or a path")
    parser.add_argument("overrides", nargs="*", metavar="sweep.KEY=VALUE", help="what grows")
    parser.add_argument("--adopt", metavar="ARM", help="write the next round, with ARM as baseline")
    parser.add_argument(
        "--replace", metavar="ARM", action="append", help="plan this arm anew, as its code is now"
    )
    parser.add_argument("--dry-run", action="store_true", help="say it, and write nothing")
    options = parser.read(argv)
    overrides = []
    for word in options.overrides:
        if word.startswith("runs_dir="):
            options.runs_dir = word.partition("=")[2]
        else:
            overrides.append(word)
    if "=" in options.study:
        raise AblateError(f"{options.study}: name the study first: ablate extend STUDY ...")
    study = find_study(options.study, options.runs_dir)
    if options.adopt is not None:
        return _adopt(study, options.adopt, overrides, options)
    if options.replace:
        if overrides:
            raise AblateError(f"{overrides[0]}: --replace changes arms, and adds nothing.")
        return _replace(study, options)
    if not overrides:
        raise AblateError("Say what to add, for example: ablate extend STUDY sweep.seeds=6")
    from ablate.plan.extension import extend

    extension = extend(study, overrides)
    if not options.dry_run and not extension.empty:
        _write(study, extension)
    _show(study, extension, options)
    return 0


def _replace(study: StudyDir, options: Any) -> int:
    from ablate.plan.replacement import replace_arms

    extension = replace_arms(study, options.replace)
    old = [t["id"] for t in study.manifest()["trials"] if t["arm"] in options.replace]
    if not options.dry_run:
        _write(study, extension)
        for trial in map(study.trial, old):
            if trial.live_state().status not in ENDED:
                mark(trial)  # a job that waits for it must not run it
    _show(study, extension, options)
    return 0


def _write(study: StudyDir, extension: Extension) -> None:
    from ablate.plan.extension import extended

    for trial in extension.trials:
        folder = study.trial(trial.id)
        folder.create(trial.config, trial.config["train"]["steps"])
        unmark(folder)  # it may have been replaced before, and be back
    with study.lock():
        manifest = study.manifest()
        if int(manifest.get("revision", 1)) != extension.revision - 1:
            raise StudyError(
                f"The study {study.name} was changed meanwhile (revision {manifest['revision']}). "
                "Run the same command again."
            )
        study.write_manifest(extended(manifest, extension))
    settings = remembered(study)
    if settings is not None:  # so that a retry before the next launch asks for what is written here
        arms = {arm.name: arm.config["cluster"] for arm in extension.arms}
        own = {k: c for k, c in arms.items() if c["name"] == settings.cluster.get("name")}
        remember(study, settings.cluster, settings.command, {**settings.arms, **own})


def _show(study: StudyDir, extension: Extension, options: Any) -> None:
    entry = extension.entry
    if options.json:
        shown = {
            "study": study.name,
            "revision": extension.revision - extension.empty,
            "written": not (options.dry_run or extension.empty),
            "arms": [arm.name for arm in extension.arms],
            "trials": [trial.id for trial in extension.trials],
            **{key: entry[key] for key in ("looks", "look", "alpha", "exploratory")},
        }
        json.dump(shown, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    if extension.empty:
        print(f"{study.name} holds all of that already; nothing was written.")
        return
    for arm in extension.arms:
        what = "replaced" if arm.name in extension.replaced else "new arm "
        print(f"{what} {arm.name} against {arm.reference}")
    for trial in extension.trials:
        print(f"new      {trial.id}")
    if entry["exploratory"]:
        print(f"The result will be marked exploratory: {entry['exploratory']}.")
    elif entry["look"] is None:  # no looks are declared, and no seeds were added
        print(f"To be judged at alpha {entry['alpha']:.3g}, as before.")
    else:
        print(f"Look {entry['look']}, to be judged at alpha {entry['alpha']:.3g}.")
    if options.dry_run:
        print("Nothing was written.")
        return
    print(f"Revision {extension.revision} of {study.name}: {len(extension.trials)} more trials.")
    print(f"To run them: ablate launch {study.word}")


def _adopt(study: StudyDir, arm: str, overrides: Sequence[str], options: Any) -> int:
    from ablate.plan.round import next_round

    if overrides:
        raise AblateError(
            f"{overrides[0]}: --adopt writes a sweep file, which you can edit. Leave it out here."
        )
    name, text = next_round(study, arm)
    path = Path("sweeps") / f"{name}.yaml"
    if not options.dry_run:
        path.parent.mkdir(exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise AblateError(
                f"{path} is there already. Rename or remove it, or plan it: ablate plan "
                f"sweep={name}"
            ) from None
    if options.json:
        json.dump({"sweep": name, "path": str(path), "written": not options.dry_run, "text": text},
                  sys.stdout, indent=2)  # fmt: skip
        sys.stdout.write("\n")
        return 0
    print(text, end="")
    if options.dry_run:
        print("Nothing was written.")
    else:
        print(f"Written to {path}. Next: ablate plan sweep={name}")
    return 0
