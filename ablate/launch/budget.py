"""A budget in GPU-hours that a study may not exceed.

Used is what every attempt held: from its start to its last sign of life, times its GPUs. An attempt
without a GPU counts as one. Trials that share an allocation share its hours, and so do members of a
stack those of their process.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ablate.errors import ConfigError, StudyError
from ablate.launch.settings import remembered
from ablate.rundir import Attempt, StudyDir, TrialDir, read_json, write_json
from ablate.rundir.names import ATTEMPTS, LEASE, STATE

__all__ = ["check", "estimate", "exhausted", "limit_of", "used_hours"]

CACHE = "usage.json"
FRESH_SECONDS = 30.0
"""Running trials share one figure of this age at most (or of 1 % of the budget): a thousand of them
must not each read everything.
"""


def limit_of(study: StudyDir) -> float | None:
    """`cluster.max_gpu_hours` of the last launch."""
    settings = remembered(study)
    return None if settings is None else settings.max_gpu_hours


def used_hours(study: StudyDir) -> float:
    """GPU-hours of all attempts so far, those set aside included."""
    return sum(_hours(study).values())


def exhausted(study: StudyDir) -> str | None:
    """Why nothing more may run, or None. Cheap enough to be asked by every running trial."""
    limit = limit_of(study)
    if limit is None:
        return None
    used = _recently_used(study, min(FRESH_SECONDS, 36 * limit))
    if used < limit:
        return None
    return f"the budget of {limit:.3g} GPU-hours is used up ({used:.3g} used)"


def estimate(study: StudyDir, missing: Collection[str]) -> float | None:
    """GPU-hours that the missing trials will take, by those of their arms (else of the study) that
    are done; None before any is.
    """
    spent, hours, arms = _hours(study), dict[str, list[float]](), dict[str, str]()
    for entry in study.manifest().get("trials", []):
        trial = study.trial(entry["id"])
        arms[trial.id] = entry["arm"]
        with contextlib.suppress(StudyError):
            if trial.state().status == "done":
                hours.setdefault(entry["arm"], []).append(spent[trial.id])
    everything = [h for found in hours.values() for h in found]
    if not everything:
        return None
    mean = sum(everything) / len(everything)
    known = {arm: sum(found) / len(found) for arm, found in hours.items()}
    return sum(known.get(arms.get(id, ""), mean) for id in missing)


def check(study: StudyDir, limit: float | None, missing: Collection[str]) -> None:
    """Before anything is started or submitted.

    Raises:
        ConfigError: where the budget is used up, or what is missing plainly does not fit into it.
    """
    if limit is None or not missing or not study.exists():
        return
    used, field = used_hours(study), "cluster.max_gpu_hours"
    remedy = "Raise it, or leave trials out"
    if used >= limit:
        raise ConfigError(field, limit, f"is used up: the study has had {used:.2f}", remedy)
    more = estimate(study, missing)
    if more is not None and used + more > limit:
        reason = (
            f"is not enough: {used:.2f} are used, and the {len(missing)} missing trials need about "
            f"{more:.2f} more, going by those that are done"
        )
        raise ConfigError(field, limit, reason, remedy)


# ---- how it is added up


def _recently_used(study: StudyDir, fresh: float) -> float:
    """From the cache, renewed by whoever finds it old; two who do so write the same."""
    path = study.path / CACHE
    with contextlib.suppress(OSError, StudyError):
        if time.time() - path.stat().st_mtime < fresh:
            return float(read_json(path)["gpu_hours"])
    used = used_hours(study)
    with contextlib.suppress(OSError):
        write_json(path, {"gpu_hours": used, "time": time.time()})
    return used


def _attempts(trial: Path) -> Iterator[str]:
    """Folders of the trial's attempts, also of those set aside."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(trial):
            if name == ATTEMPTS or name.startswith("aside-"):
                inner = os.path.join(trial, name, "" if name == ATTEMPTS else ATTEMPTS)
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    yield from (os.path.join(inner, n) for n in os.listdir(inner) if n.isdigit())


def _hours(study: StudyDir) -> dict[str, float]:
    """Trial -> GPU-hours of all its attempts."""
    shares, found = _shares(study), list[tuple[str, float, tuple[Any, ...] | None]]()
    hours = dict.fromkeys((trial.id for trial in study.trials()), 0.0)
    for trial in hours:
        for attempt in _attempts(study.trial(trial).path):
            with contextlib.suppress(StudyError, KeyError, TypeError, ValueError):
                record = Attempt(
                    TrialDir(Path(attempt).parents[1]), int(os.path.basename(attempt))
                ).record()
                gpus = record.get("gpus")
                share = float(gpus) if gpus else shares.get(str(record.get("job_id")), 1.0)
                spent = max(0.0, _last_sign(attempt) - float(record["time"])) / 3600 * share
                process = tuple(record.get(k) for k in ("machine", "pid", "process_started"))
                found.append((trial, spent, process if record.get("seats") else None))
    members = Counter(process for _, _, process in found)
    for trial, spent, process in found:
        hours[trial] += spent / (1 if process is None else members[process])
    return hours


def _last_sign(attempt: str) -> float:
    """When it ended; of one that runs or was killed, its last heartbeat."""
    with contextlib.suppress(StudyError, TypeError, ValueError):
        state = read_json(Path(attempt, STATE))
        return float(state.get("ended") or state["heartbeat"])
    with contextlib.suppress(OSError):
        return os.stat(os.path.join(attempt, LEASE)).st_mtime
    return 0.0


def _shares(study: StudyDir) -> dict[str, float]:
    """SLURM job -> GPUs that each of its processes has."""
    found = {}
    for one in study.submissions(skip_damaged=True):
        gpus = max(1, (one.resources.get("gpus") or 0) * (one.resources.get("nodes") or 1))
        stack = one.resources.get("stack") or 1
        for index, ids in enumerate(one.tasks):
            found[one.task_id(index)] = gpus / max(1, math.ceil(len(ids) / stack))
    return found
