"""Launches a study of fake trials: `fake_launch.py STUDY WORKERS`; 130 where it was stopped."""

from __future__ import annotations

import sys
from pathlib import Path

from ablate.launch.local import run_missing
from ablate.launch.pool import Pool
from ablate.rundir import StudyDir

if __name__ == "__main__":
    with Pool("fake_training:run") as pool:
        stopped = run_missing(StudyDir(Path(sys.argv[1])).trials(), pool, workers=int(sys.argv[2]))
    sys.exit(130 if stopped else 0)
