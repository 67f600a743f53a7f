"""What killed test runs leave is removed by the next; needs no Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_box
from slurm_box import remove_abandoned

from ablate.rundir.process import machine, process_started


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *words])


def test_clusters_of_dead_owners_are_removed_with_their_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_box.tempfile, "gettempdir", lambda: str(tmp_path))
    me = [machine(), os.getpid(), process_started(os.getpid())]
    owners = {"dead": [*me[:2], "1"], "lives": me, "elsewhere": ["another boot", *me[1:2], "1"]}
    for name, owner in owners.items():
        (tmp_path / f"slurmbox-{name}.claim").mkdir()
        (tmp_path / f"slurmbox-{name}.claim" / "owner").write_text(json.dumps(owner))
        (tmp_path / f"slurmbox-{name}" / "pids").mkdir(parents=True)
    (tmp_path / "slurmbox-new.claim").mkdir()
    daemon = sleeper(f"{tmp_path}/slurmbox-dead/slurm.conf")
    other = sleeper(f"{tmp_path}/slurmbox-deadly")
    try:
        for name, process in (("slurmctld", daemon), ("munged", other)):
            (tmp_path / "slurmbox-dead" / "pids" / f"{name}.pid").write_text(f"{process.pid}\n")
        remove_abandoned()
        assert daemon.wait(10) == -9
        assert other.poll() is None, "it has the number of a daemon that is gone"
    finally:
        for process in (daemon, other):
            process.kill()
            process.wait()
    left = {path.name for path in tmp_path.iterdir()}
    kept = {f"slurmbox-{name}{end}" for name in ("lives", "elsewhere") for end in ("", ".claim")}
    assert left == kept | {"slurmbox-new.claim"}
