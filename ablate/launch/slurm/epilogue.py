"""After a task that did not exit with 0: a process that was killed left no word, so this gives one.

    python -m ablate.launch.slurm.epilogue FOLDER CODE

Run by the batch script, on the node, when srun is over. A trial that failed has said so, and
nothing is to be done. One that was killed goes on, within its budget: the job is requeued.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ablate.config.schema import ClusterConfig
from ablate.launch.admission import conclude
from ablate.launch.notify import tell_if_over
from ablate.launch.slurm import ending
from ablate.launch.slurm.autopsy import cause_of_death
from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.ill_nodes import leave_out_ill_nodes, leave_out_of_requeued
from ablate.launch.slurm.start import load_function
from ablate.launch.slurm.states import NOT_NOW
from ablate.launch.slurm.task import Task
from ablate.rundir import ENDED, StudyDir, incidents

__all__ = ["main"]

MEMORY_WORDS = ("exceeded memory limit", "exceeded job memory limit", "oom-kill", "oom_kill")


def main(folder: str, code: int) -> int:
    """The exit code of the job."""
    job = this_job()
    assert job is not None
    task = load_function(Path(folder), job.job_id)
    if not isinstance(task, Task):
        return code
    study, killed = StudyDir(Path(task.study)), False
    for id in task.trials:
        trial = study.trial(id)
        attempt = trial.newest_attempt()
        if attempt is None or not job.made(attempt.record()):
            continue
        own = attempt.own_state()
        if own is not None:
            killed = killed or (own.status == "preempted" and code != NOT_NOW)
            continue
        outcome, reason, blame = cause_of_death(attempt)
        if _said_memory(Path(folder), job.job_id):
            outcome, reason, blame = "oom", f"killed for want of memory ({job.node})", False
        elif 1 < code < 128:
            outcome, reason, blame = "code", "its process ended by itself", False
        state = conclude(attempt, outcome, f"{reason}, exit code {code}")
        if blame:
            incidents.note_death(study.path, job.node, job.job_id, id, attempt.number)
        if outcome in ("oom", "code"):
            state = state.replace(status="failed")
        trial.write_state(state.replace(attempt=attempt.number))
        killed = killed or state.status not in ENDED
    never = code > 128 and all(study.trial(id).newest_attempt() is None for id in task.trials)
    again = killed or (never and job.restart < int(task.cluster["max_retries"]))
    cluster = ClusterConfig(**task.cluster)
    if killed:
        leave_out_ill_nodes(study, cluster)
    if again and not incidents.held(study.path):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the requeue ends this script too
        if ending.requeue(job.raw_id):
            leave_out_of_requeued(job.raw_id, study, cluster)
    else:
        tell_if_over(study)
    return code


def _said_memory(folder: Path, job_id: str) -> bool:
    """Whether SLURM's own memory check ended the step: it says so in the task's error log."""
    for path in folder.glob(f"{job_id}_*_log.err"):
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            text = file.read().decode(errors="replace").lower()
        if any(words in text for words in MEMORY_WORDS):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
