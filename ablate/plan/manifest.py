"""manifest.json as a plan freezes it, and where the code and its environment stood."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ablate
from ablate.design.rule import decide_hash
from ablate.plan.spending import look_of
from ablate.plan.study_plan import Plan
from ablate.rundir import SCHEMA_VERSION

__all__ = ["code_version", "environment", "manifest_of"]

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "tokenizers", "flash-attn")
"""Whose versions can change a result. Read off their metadata: torch is not imported."""


def manifest_of(plan: Plan) -> dict[str, Any]:
    """Revision 1 of the study's manifest."""
    now = time.time()
    return {
        "schema": SCHEMA_VERSION,
        "study": plan.study,
        "created": now,
        "revision": 1,
        "question": plan.question,
        "design": plan.design,
        "design_info": plan.design_info,
        "baseline": plan.baseline,
        "base": plan.base,
        "sweep": plan.asked,
        "factors": plan.factors,
        "claim": plan.claim,
        "decide": plan.decide,
        "decide_hash": decide_hash(plan.decide),
        "match": plan.match,
        "budget": {"steps": plan.steps, "tokens": plan.tokens},
        "arms": [arm.to_json() for arm in plan.arms],
        "trials": [trial.to_json() for trial in plan.trials],
        "pilot": [trial.id for trial in plan.pilot_trials],
        "code": code_version(),
        "environment": environment(),
        "history": [
            {
                "revision": 1,
                "time": now,
                "what": f"{len(plan.trials)} trials planned",
                **look_of(plan.decide, plan.seeds, []),
            }
        ],
    }


def code_version() -> dict[str, Any]:
    """version, commit and dirty; the last two are None outside of a git checkout."""
    version = _version("ablate") or ablate.__version__
    here = Path(__file__).resolve().parent
    commit = _git(here, "rev-parse", "HEAD")
    # A checkout counts only if it tracks this file: an installed package may lie in a foreign one.
    if commit is None or not _git(here, "ls-files", "--", Path(__file__).name):
        return {"version": version, "commit": None, "dirty": None}
    status = _git(here, "status", "--porcelain", "--untracked-files=no")
    return {"version": version, "commit": commit, "dirty": bool(status)}


def environment() -> dict[str, Any]:
    """Versions and machine, without importing what they name."""
    versions = {name.replace("-", "_"): _version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version is not None},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "executable": Path(sys.executable).name,
    }


def _version(package: str) -> str | None:
    import importlib.metadata  # slow, and a plan that is only shown does not need it

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
