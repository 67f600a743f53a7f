"""What a user sees when something goes wrong: one paragraph and an exit code, no bare traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable

from ablate.errors import AblateError

__all__ = ["DEFECT", "INTERRUPTED", "guarded", "tolerant_streams"]

DEFECT, INTERRUPTED, BROKEN_PIPE = 3, 130, 141

OF_THE_MACHINE = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ELOOP,
    errno.EMFILE,
    errno.ENAMETOOLONG,
    errno.ENFILE,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
}
"""System errors that the user can put right: they name a file and are no defect of ours."""


def guarded(name: str, action: Callable[[], int]) -> int:
    """`action()`'s exit code; `ABLATE_DEBUG=1` lets exceptions through."""
    if os.environ.get("ABLATE_DEBUG") == "1":
        return action()
    try:
        code = action()
        sys.stdout.flush()  # now, where a reader who has left can still be told from a defect
        return code
    except SystemExit as end:  # argparse; and rich, where the reader has had enough
        if isinstance(end.__context__, BrokenPipeError):
            return _broken_pipe()
        if isinstance(end.code, str):
            _say(name, end.code)
            return 2
        return int(end.code or 0)
    except AblateError as error:
        _say(name, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say(name, "interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:
        if error.errno in OF_THE_MACHINE and (error.filename or error.errno != errno.ENOENT):
            _say(name, f"{error.filename or 'the system'}: {error.strerror}.")
            return 2
        return _defect(name, error)
    except Exception as error:
        return _defect(name, error)
    finally:
        _leave_unsaid()


def _leave_unsaid() -> None:
    """What standard error could not take (a log on a full disk) changes no exit code: Python would
    try once more at its exit, and end with 120.
    """
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def tolerant_streams() -> None:
    """Output that was closed (`>&-`) goes nowhere; letters that it cannot show become `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure") and (stream.encoding or "").lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _broken_pipe() -> int:
    """The reader has had enough (`ablate list | head`). Python would complain again at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return BROKEN_PIPE


def _defect(name: str, error: BaseException) -> int:
    handle, path = tempfile.mkstemp(prefix="ablate-", suffix=".log", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    last = traceback.format_exception_only(error)[-1].strip()
    _say(
        name,
        f"this should not have happened: {last} The traceback is in {path}; please report it. "
        "(ABLATE_DEBUG=1 shows it here.)",
    )
    return DEFECT


def _say(name: str, message: str) -> None:
    paragraph = " ".join(line.strip() for line in message.splitlines() if line.strip())
    with contextlib.suppress(OSError):  # a terminal that is gone
        print(f"{name}: {paragraph}", file=sys.stderr, flush=True)
