"""Exception to the class of a trial's end: what a retry could mend, and what it could not."""

from __future__ import annotations

import errno

from ablate.errors import AblateError, DivergedError, LostProcessError, TrialError

__all__ = ["classify", "reason_of"]

MACHINE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.ENODEV}


def classify(error: BaseException) -> str:
    """diverged, config, oom, node or code.

    Config and code errors are deterministic: another attempt would end the same way.
    """
    if isinstance(error, DivergedError):
        return "diverged"
    if isinstance(error, LostProcessError):
        return error.outcome
    if isinstance(error, AblateError) and not isinstance(error, TrialError):
        return "config"
    if _is_out_of_memory(error):
        return "oom"
    if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
        return "node"
    return "code"


def reason_of(error: BaseException) -> str:
    """One line for people: the exception's last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AblateError):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, RuntimeError | OSError) and any(w in str(error).lower() for w in words)
