"""A command or a webhook of the user's, called when a study ends or stalls: once each time.

`cluster.notify` is a shell command, which finds STUDY, STATE and more in its environment, or an
http(s) address, which is sent the same as JSON. Every trial that ends asks whether it was the last;
who finds the study over first makes a file that nobody else can make, and calls. After a retry the
study ends anew, which is another end. A call that fails or hangs is noted, and hurts nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ablate.errors import StudyError
from ablate.launch.assignments import feeders
from ablate.launch.budget import exhausted
from ablate.launch.observe import Scheduler, scheduler_of, study_view
from ablate.launch.settings import remembered
from ablate.launch.slurm.states import HELD, UNFINISHED
from ablate.launch.trial_view import TrialView
from ablate.rundir import ENDED, StudyDir, write_json

__all__ = ["announce", "state_of", "tell_if_over"]

log = logging.getLogger("ablate")

FOLDER = "notices"
COMMAND_SECONDS, ADDRESS_SECONDS = 60.0, 10.0
OUTPUT = 2000
"""Characters of a command's output that the notice keeps."""


def tell_if_over(study: StudyDir, *, stopped: bool = False, ours: str | None = None) -> str | None:
    """Calls the hook if the study has ended, or stands still; never raises.

    Args:
        study: whose trial, job or launch has just ended.
        stopped: the caller was all that ran it, so what is left stands still.
        ours: the SLURM job that asks; it does not count as one that goes on.

    Returns:
        The state that was announced, or None.
    """
    try:
        settings = remembered(study)
        if settings is None or not settings.notify or not _may_be_over(study):
            return None
        views = study_view(study, None)
        state = state_of(views)
        if state is None and (stopped or exhausted(study) or _stands_still(study, views, ours)):
            state = "stalled"
        if state is None or not announce(study, settings.notify, state, views):
            return None
        return state
    except Exception:
        log.exception("the notification failed")
        return None


def state_of(views: Sequence[TrialView]) -> str | None:
    """Done or failed where all trials have ended, else None."""
    if not views or any(v.status not in ENDED for v in views):
        return None
    bad = any(v.status in ("failed", "cancelled") for v in views)
    return "failed" if bad else "done"


def announce(study: StudyDir, hook: str, state: str, views: Sequence[TrialView]) -> bool:
    """Whether this call of the hook was ours to make, and was made."""
    counts = Counter(v.status for v in views)
    story = sorted((v.id, v.status, v.attempt) for v in views)
    key = hashlib.sha256(json.dumps([state, story]).encode()).hexdigest()[:12]
    folder = study.path / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{state}-{key}.json"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    told = {
        "STUDY": study.name,
        "STATE": state,
        "STUDY_PATH": str(study.path.resolve()),
        **{status.upper(): str(n) for status, n in counts.items()},
    }
    result = call(hook, told)
    write_json(path, {"time": time.time(), "hook": hook, "told": told, "result": result})
    log.info("told of the study's end (%s): %s", state, result)
    return True


def call(hook: str, told: dict[str, str]) -> str:
    """How it went, in words."""
    if hook.startswith(("http://", "https://")):
        return _post(hook, told)
    try:
        done = subprocess.run(
            hook,
            shell=True,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {COMMAND_SECONDS:.0f} s and was ended"
    except OSError as error:
        return f"could not be run: {error}"
    text = done.stdout.decode(errors="replace").strip()[-OUTPUT:]
    return f"exit code {done.returncode}" + (f": {text}" if text else "")


def _post(address: str, told: dict[str, Any]) -> str:
    lower = {key.lower(): value for key, value in told.items()}
    import urllib.request  # with ssl and http: as long as all else that a task imports

    text = f"ablate: the study {told['STUDY']} is {told['STATE']}."
    body = json.dumps({"text": text, **lower}).encode()
    request = urllib.request.Request(
        address, data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=ADDRESS_SECONDS) as answer:
            return f"answered {answer.status}"
    except (OSError, ValueError) as error:
        return f"failed: {error}"


def _may_be_over(study: StudyDir) -> bool:
    """Whether nothing runs: stops at the first trial that does, as nearly every asker's answer."""
    for trial in study.trials():
        try:
            state = trial.state()
        except StudyError:
            continue
        if state.status == "running" and trial.live_state().status == "running":
            return False
    return True


def _stands_still(study: StudyDir, views: Sequence[TrialView], ours: str | None) -> bool:
    """Whether SLURM answers, and neither runs nor will start any job for what is left."""
    left = [v for v in views if v.status not in ENDED]
    scheduler: Scheduler | None = scheduler_of(study)
    if scheduler is None or not left:
        return False
    wanted = {v.job_id for v in left if v.job_id} | set(feeders(study))
    asked = {job for job in wanted if job != ours}
    jobs = scheduler.jobs(asked)
    if not asked or not scheduler.answered():
        return False
    going, never = UNFINISHED - HELD, "DependencyNeverSatisfied"
    return not any(job.state in going and job.reason != never for job in jobs.values())
