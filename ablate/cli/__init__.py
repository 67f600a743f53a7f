"""The command line: one table of verbs, each imported when it is called.

Exit codes: 0 all good, 1 some trial failed (or, of verbs that only read, some file is damaged), 2
the request was wrong, 3 a defect of ablate itself, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["VERBS", "Verb", "main"]


@dataclass(frozen=True)
class Verb:
    module: str
    """Has `main(argv) -> int`."""
    help: str


VERBS = {
    "plan": Verb("ablate.cli.plan", "the arms of a sweep, their cost, and what it can detect"),
    "launch": Verb("ablate.cli.launch", "freeze a sweep as a study, and run what is missing"),
    "extend": Verb("ablate.cli.extend", "more seeds or arms for a study, as a revision"),
    "train": Verb("ablate.cli.train", "one trial in this process; -m for a Hydra multirun"),
    "bench": Verb("ablate.cli.bench", "how fast one arm trains here, or beside installed peers"),
    "list": Verb("ablate.cli.studies", "the studies on disk, newest first"),
    "status": Verb("ablate.cli.status", "where every trial of a study stands"),
    "watch": Verb("ablate.cli.watch", "the status, live, until the study ends"),
    "logs": Verb("ablate.cli.logs", "what a trial printed, with the traceback if it failed"),
    "cancel": Verb("ablate.cli.cancel", "ends trials for good, running or not"),
    "retry": Verb("ablate.cli.retry", "runs again what failed or was cancelled"),
    "prune": Verb("ablate.cli.prune", "old checkpoints: what would go, and with --yes goes"),
    "report": Verb("ablate.cli.report", "tables, verdicts and plots of a study"),
    "spikes": Verb("ablate.cli.spikes", "loss spikes and their damage: a trial, a study, any CSV"),
    "claims": Verb("ablate.cli.claims", "what others claimed, what was measured, what follows"),
    "sync": Verb("ablate.cli.sync", "a study to wandb, one run a trial, as often as you like"),
    "generate": Verb(
        "ablate.cli.generate", "text from a trial's weights, with any key/value cache"
    ),
    "diff": Verb("ablate.cli.diff", "in which fields two trials differ"),
    "data": Verb("ablate.cli.data", "`data prepare`: token files, ahead of training"),
}

DESCRIPTION = """\
Which architecture changes help a language model, by how much, at what cost, and how sure are we?

usage: ablate VERB ...        (ablate VERB --help says more)
"""

EXIT_CODES = """\
exit codes:
  0 all good    1 some trial failed    2 the request was wrong    3 a defect of ablate itself
  Verbs that only read (status, list, logs, report, ...) return 1 for files that are damaged, and
  0 for trials that failed.
"""

FIRST_STEPS = """\
first steps:
  ablate plan sweep=hello         what would run; writes nothing
  ablate launch sweep=hello       runs it here; stop it and launch again as you like
  ablate report hello             the verdicts
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of `ablate ARGV`; errors become one paragraph on standard error."""
    from ablate.cli.failures import guarded, tolerant_streams

    tolerant_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    name = f"ablate {words[0]}" if words and words[0] in VERBS else "ablate"
    return guarded(name, lambda: _dispatch(words))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        from ablate import __version__

        print(f"ablate {__version__}")
        return 0
    if words[0] not in VERBS:
        from ablate.config.typed import closest
        from ablate.errors import AblateError

        raise AblateError(f"there is no verb {words[0]!r}. {closest(words[0], VERBS)}")
    here = _current_folder()
    if here not in sys.path:
        sys.path.append(here)  # a user's own module beside the command: my_norms:MyNorm
    return int(importlib.import_module(VERBS[words[0]].module).main(words[1:]))


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        from ablate.errors import AblateError

        raise AblateError("the current folder was deleted. Change to one that exists.") from None


def help_text() -> str:
    verbs = "".join(f"  {name:<10}{verb.help}\n" for name, verb in VERBS.items())
    return f"{DESCRIPTION}\n{verbs}\n{FIRST_STEPS}\n{EXIT_CODES}"
