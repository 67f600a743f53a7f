"""The exception tree.

    AblateError                 the user's request or files are wrong            exit code 2
    ├── ConfigError             one field of a configuration                     2
    ├── DataError               a corpus, a tokenizer or a token file            2
    ├── PlanError               a sweep that cannot be an honest comparison      2
    ├── StudyError              a study or trial directory                       2
    │   ├── TrialHeldError      somebody else is running this trial              2
    │   └── TrialEndedError     it has ended, and is not to be run again         2
    ├── TrackError              wandb's server did not take or give something    1
    └── TrialError              a trial ended badly                              1
        ├── DivergedError       loss or gradient became NaN/inf                  1
        └── LostProcessError    another process of the trial failed or is gone   1

Every message is one readable paragraph: what is wrong, where, and the remedy. `ablate.cli`
prints it to
standard error and exits with `exit_code`; a traceback never reaches the terminal.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AblateError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "LostProcessError",
    "PlanError",
    "StudyError",
    "TrackError",
    "TrialEndedError",
    "TrialError",
    "TrialHeldError",
]


class AblateError(Exception):
    """Something the user can put right; the message says how."""

    exit_code = 2


class ConfigError(AblateError):
    """A field holds a value that makes no sense.

    The message reads `model.rope=true: <reason>. <remedy>`.
    """

    def __init__(self, field: str, value: Any, reason: str, remedy: str = "") -> None:
        self.field, self.value, self.reason, self.remedy = field, value, reason, remedy
        sentences = [s if s[-1] in ".?!" else s + "." for s in (reason, remedy) if s]
        super().__init__(f"{field}={show(value)}: " + " ".join(sentences))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.reason, self.remedy)


class DataError(AblateError):
    """A corpus, a tokenizer or a token file cannot be used."""


class PlanError(AblateError):
    """A sweep that cannot be an honest comparison."""


class StudyError(AblateError):
    """A study or trial directory is missing, damaged or of another version."""


class TrialHeldError(StudyError):
    """Another process holds the lease of this trial."""


class TrialEndedError(StudyError):
    """The trial has ended, and nobody asked to run it again."""


class TrackError(AblateError):
    """wandb's server is away, or took less than all; the local files are whole."""

    exit_code = 1


class TrialError(AblateError):
    """A trial ended badly."""

    exit_code = 1


class DivergedError(TrialError):
    """Loss or gradient norm became NaN or infinite at `step`."""

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what
        super().__init__(f"diverged at step {step}: {what}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.what)


class LostProcessError(TrialError):
    """Another process of the same trial failed, or is gone without a word.

    `outcome` is the class of its failure (see `ablate.launch.outcome`).
    """

    def __init__(self, text: str, outcome: str = "node") -> None:
        self.outcome = outcome
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.outcome)


def show(value: Any) -> str:
    """A value as a user would have typed it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
