"""From a plan to finished trials. `job` is what runs one trial anywhere; `local` runs a study on
this machine.

job.py      lease, heartbeat, signals, log, outcome, record of one trial
attempt_log.py  what is logged and warned, to the log of its attempt
stop.py     signals -> "stop at the next step"
outcome.py  exception -> class of the end
stitch.py   attempts -> metrics.parquet, events.jsonl
freeze.py   plan -> manifest and configurations on disk
runner.py   what trains a trial, imported
pool.py     a warm process (`forks.py`) that forks one child per trial (`children.py`)
stacks.py   trials that start together; `together.py`: a thread for each, in one process
local.py    the queue: what is missing, on so many workers
singles.py  trials that are run without a sweep
"""
