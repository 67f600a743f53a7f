"""THE on-disk contract: names, schema versions, atomic writes, leases.

    runs/<study>/
      manifest.json                       frozen question, arms and trials; changes are revisions
      data.json                           fingerprints of the texts it was launched with
      trials/<id>/
        config.yaml                       the resolved configuration
        state.json                        where the trial stands, written atomically
        attempts/<n>/                     what attempt n wrote, and nobody else
          attempt.json                    who runs it, and where it resumed
          lease                           its modification time is the heartbeat
          metrics.jsonl  events.jsonl  log
          checkpoints/step-000100/        complete or absent, never half
          state.json  summary.json        its own copies, once it has ended
        metrics.parquet  events.jsonl     the stitched record, each step once
        summary.json                      final metrics, written once
      submissions/<n>.json                what was handed to a scheduler
      source/<digest>/                    the code that those jobs run
      report/

The attempt number is the fencing number: `mkdir attempts/<n>` is atomic, so exactly one process
gets n, and an older attempt that wakes up can only write into its own folder. Reading needs neither
torch nor pandas.
"""

from ablate.rundir import incidents, names
from ablate.rundir.attempt import Attempt
from ablate.rundir.ended import Ended, read_ended
from ablate.rundir.files import (
    append_lines,
    check_writable,
    read_json,
    read_jsonl,
    write_atomic,
    write_json,
)
from ablate.rundir.frozen_data import (
    check_frozen_data,
    data_key,
    frozen_data,
    keep_data,
    refuse_other_text,
)
from ablate.rundir.machinery import other_machinery
from ablate.rundir.names import LEASE_SECONDS, SCHEMA_VERSION
from ablate.rundir.state import ENDED, OUTCOMES, STATUSES, State
from ablate.rundir.study import StudyDir, find_study, list_studies
from ablate.rundir.submission import Submission
from ablate.rundir.summary import (
    FROM_LAST_ROW,
    before_last_tenth,
    mend_summary,
    summary_damage,
    write_summary,
)
from ablate.rundir.trial import TrialDir

__all__ = [
    "ENDED",
    "FROM_LAST_ROW",
    "LEASE_SECONDS",
    "OUTCOMES",
    "SCHEMA_VERSION",
    "STATUSES",
    "Attempt",
    "Ended",
    "State",
    "StudyDir",
    "Submission",
    "TrialDir",
    "append_lines",
    "before_last_tenth",
    "check_frozen_data",
    "check_writable",
    "data_key",
    "find_study",
    "frozen_data",
    "incidents",
    "keep_data",
    "list_studies",
    "mend_summary",
    "names",
    "other_machinery",
    "read_ended",
    "read_json",
    "read_jsonl",
    "refuse_other_text",
    "summary_damage",
    "write_atomic",
    "write_json",
    "write_summary",
]
