"""`ablate diff TRIAL TRIAL`: what differs between two trials in configuration, data, code and
environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import find_trial
from ablate.errors import AblateError, StudyError, show
from ablate.rundir import StudyDir, TrialDir

__all__ = ["differences", "main"]

EXAMPLES = """\
  ablate diff hello/baseline-s0 hello/qk_norm-s0
  ablate diff runs/a/trials/x-s0-12345678 runs/b/trials/x-s0-87654321 --json
"""

_DATA = ("data_fingerprint", "tokens")
_MACHINE = ("device", "torch")
_TITLES = {
    "diff": "configuration",
    "data": "data",
    "code": "code",
    "environment": "environment",
}


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("diff", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help="STUDY/TRIAL or a folder")
    options = parser.read(argv)
    words = take_runs_dir(options, options.trials)
    if len(words) != 2:
        raise AblateError("name two trials, each as STUDY/TRIAL or a folder.")
    first, second = (find_trial(word, options.runs_dir) for word in words)
    found = differences(first, second)
    if options.json:
        print(json.dumps({"trials": [first.id, second.id], **found}, indent=2))
        return 0
    for part, fields in found.items():
        if not fields:
            print(f"{_TITLES[part]}: equal")
            continue
        print(f"{_TITLES[part]}:")
        width = max(len(field) for field in fields)
        for field, (one, other) in fields.items():
            print(f"  {field:<{width}}  {show(one)} -> {show(other)}")
    return 0


def differences(first: TrialDir, second: TrialDir) -> dict[str, dict[str, list[Any]]]:
    """`diff` (the configuration), `data`, `code` and `environment`: field -> [first, second].

    What only one of the two recorded is a difference from null; what neither recorded is none.
    """
    from ablate.plan import difference

    one, other = _recorded(first), _recorded(second)
    parts = {part: _unequal(one[part], other[part]) for part in one}
    configs = first.config(), second.config()
    seed = _unequal(*({"seed": c.get("seed")} for c in configs))  # no difference of two arms is one
    return {"diff": {**seed, **difference(*configs)}, **parts}


def _recorded(trial: TrialDir) -> dict[str, dict[str, Any]]:
    """What the trial and its study say about data, code and machine."""
    study = StudyDir(trial.study_path)
    try:
        manifest = study.manifest()
    except StudyError:  # a trial's folder by itself
        manifest = {}
    summary = trial.summary() or {}
    code = dict(manifest.get("code") or {})
    source = _source(study, trial.id)
    return {
        "data": {k: summary.get(k) for k in _DATA},
        "code": code | ({"source": source} if source else {}),
        "environment": dict(manifest.get("environment") or {})
        | {f"trial.{k}": summary.get(k) for k in _MACHINE},
    }


def _source(study: StudyDir, id: str) -> str | None:
    """The frozen code of the newest submission that runs the trial."""
    found = [s.source for s in study.submissions() if id in s.jobs_of_trials() and s.source]
    return found[-1] if found else None


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    fields = dict.fromkeys([*one, *other])
    return {f: [one.get(f), other.get(f)] for f in fields if one.get(f) != other.get(f)}
