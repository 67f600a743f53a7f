"""Plan to disk: the manifest and every trial's configuration, written once and never edited."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from ablate.config.fingerprint import fingerprint
from ablate.errors import StudyError, show
from ablate.plan import Plan
from ablate.rundir import StudyDir, TrialDir
from ablate.rundir.configuration import mend_config
from ablate.rundir.names import CONFIG

__all__ = ["differences", "freeze", "mend_configs", "mend_planned", "study_of"]

SCALARS = ("question", "design", "baseline", "match", "budget", "decide")
"""Keys of the manifest that a plan must repeat to mean the same study, beside arms and trials."""


PLACES = ("cluster", "resources", "site", "track", "study", "runs_dir")
"""Sections that say where a trial runs and lies, and who watches."""


def study_of(plan: Plan) -> StudyDir:
    return StudyDir(Path(plan.runs_dir) / plan.study)


def freeze(plan: Plan, command: str | None = None) -> StudyDir:
    """Writes what is missing; the same plan again changes nothing.

    Args:
        plan: what is to be run.
        command: that asked for it, for whoever wants to repeat it.

    Raises:
        StudyError: where a study of this name was frozen from another plan, with what differs.
    """
    study, manifest = study_of(plan), plan.manifest()
    _refuse_another(study, manifest)
    study.path.mkdir(parents=True, exist_ok=True)
    for planned in plan.trials:
        study.trial(planned.id).create(planned.config, planned.config["train"]["steps"])
    with study.lock():
        _refuse_another(study, manifest)
        if not study.exists():
            study.write_manifest({**manifest, "command": command})
    return study


def mend_configs(plan: Plan) -> list[str]:
    """Writes every damaged config.yaml anew, also of trials that have ended; says so.

    Raises:
        StudyError: as `freeze`, before anything is written.
    """
    study = study_of(plan)
    _refuse_another(study, plan.manifest())
    done = ((t.id, mend_planned(study.trial(t.id), t.config)) for t in plan.trials)
    return [f"{id}: {said}" for id, said in done if said]


def mend_planned(trial: TrialDir, config: dict[str, Any]) -> str | None:
    """`mend_config` of a trial, which bears the fingerprint of its configuration in its name."""

    def same(there: dict[str, Any]) -> bool:
        try:
            return trial.id.endswith(fingerprint(there)[:8])
        except (AttributeError, TypeError, ValueError):
            return False  # a section that is none

    return mend_config(trial.path / CONFIG, config, same) if same(config) else None


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What two manifests disagree about, in words; empty where they are the same study."""
    found = [
        f"{key} was {_brief(old.get(key))} and is now {_brief(new.get(key))}"
        for key in SCALARS
        if old.get(key) != new.get(key)
    ]
    arms, arms_now = ({a["name"] for a in m.get("arms", [])} for m in (old, new))
    found += [f"arm {name} is new" for name in sorted(arms_now - arms)]
    found += [f"arm {name} is gone" for name in sorted(arms - arms_now)]
    ids, ids_now = ({t["id"] for t in m.get("trials", [])} for m in (old, new))
    shared = [t for t in new.get("trials", []) if t["arm"] in arms]
    added = [t["id"] for t in shared if t["id"] not in ids]
    gone = [
        t["id"] for t in old.get("trials", []) if t["arm"] in arms_now and t["id"] not in ids_now
    ]
    if added:
        found.append(f"{len(added)} trials are new or of another configuration ({added[0]})")
    if gone:
        found.append(f"{len(gone)} trials of the study are gone from it ({gone[0]})")
    return found


def _refuse_another(study: StudyDir, manifest: dict[str, Any]) -> None:
    if not study.exists():
        return
    found = differences(study.manifest(), manifest)
    if found:
        more = f" (and {len(found) - 4} more)" if len(found) > 4 else ""
        remedy = f"Give the new plan another name: study={study.name}-2"
        if all("gone" in what for what in found):
            remedy = f"The study may have grown since: `ablate launch {study.word}` goes on with it"
        elif words := _extension(study.manifest(), manifest):
            remedy = f"To take that into the study: ablate extend {study.word} {words}. {remedy}"
        raise StudyError(
            f"The study {study.name} is frozen, and this plan differs from it: "
            f"{'; '.join(found[:4])}{more}. {remedy}."
        )


def _extension(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What `ablate extend` is to be told to make the one study of the other; empty where it cannot.

    It composes the sweep as it was written, so what is written otherwise is for it to take or not.
    """
    asked, now = (dict(m.get("sweep") or {}) for m in (old, new))
    written, wanted = (dict(s.get("written") or {}) for s in (asked, now))
    if not written or _of_trials(asked) != _of_trials(now):
        return ""
    (seeds, more), (factors, further) = (
        (written.pop(key, None), wanted.pop(key, None)) for key in ("seeds", "factors")
    )
    if written != wanted:
        return ""
    gone = {t["id"]: t["arm"] for t in old.get("trials", [])}
    for trial in new.get("trials", []):
        gone.pop(trial["id"], None)
    if gone:
        arms = dict.fromkeys(gone.values())
        same = seeds == more and factors == further and old.get("baseline") not in arms
        return " ".join(f"--replace {shlex.quote(arm)}" for arm in arms) if same else ""
    words = [] if seeds == more else [f"sweep.seeds={show(more)}"]
    added = {k: v for k, v in (further or {}).items() if k not in (factors or {})}
    if {**(factors or {}), **added} != (further or {}):
        return ""
    words += [f"sweep.factors.{k}={json.dumps(v)}" for k, v in added.items()]
    return " ".join(map(shlex.quote, words))


def _of_trials(asked: dict[str, Any]) -> list[str]:
    """The overrides that say what a trial is."""
    lines = asked.get("overrides") or []
    return [line for line in lines if re.split(r"[.=/]", line.lstrip("+~"))[0] not in PLACES]


def _brief(value: Any) -> str:
    text = show(value)
    return text if len(text) <= 60 else text[:57] + "..."
