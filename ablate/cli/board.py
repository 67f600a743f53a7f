"""A study on one screen, as plain lines: fits a terminal of any width, and a pipe."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, TextIO

from ablate.cli.overview import STYLES, counts_line, damages_of
from ablate.cli.progress import duration
from ablate.cli.width import pipe_width
from ablate.launch.slurm.states import IN_QUEUE
from ablate.rundir import ENDED, STATUSES

__all__ = ["Screen", "board", "cut", "screen_of", "show"]

ALL_UP_TO = 40
"""A study with more trials is summed up by arm, unless all are asked for."""
INTERESTING = 12
ARMS = 25
ERRORS = 5
CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}
FIRST = ("running", "failed", "diverged", "preempted", "cancelled", "pending", "done")
"""The order in which trials are interesting."""


class Screen:
    """How wide to write, and whether in colour."""

    def __init__(self, width: int, colour: bool, rows: int | None = None) -> None:
        self.width, self.colour = max(20, width), colour
        self.rows = rows
        """Of a screen that is redrawn: nothing may be longer or wider; else ids are whole."""

    def paint(self, text: str, style: str) -> str:
        code = CODES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code and self.colour else text


def screen_of(stream: TextIO) -> Screen:
    if stream.isatty():
        return Screen(shutil.get_terminal_size().columns, "NO_COLOR" not in os.environ)
    return Screen(pipe_width(), False)


def board(status: Mapping[str, Any], screen: Screen, *, everything: bool = False) -> list[str]:
    """The lines of `ablate status`.

    Args:
        status: see `overview.study_status`.
        screen: no line is wider, but for a trial's id, which must be whole to be pasted.
        everything: a line for every trial, however many there are.
    """
    trials, study = status["trials"], status["study"]
    lines = _head(status, screen)
    room = ALL_UP_TO if screen.rows is None else min(ALL_UP_TO, screen.rows - len(lines) - 6)
    if everything or len(trials) <= room:
        lines += _table(trials, screen)
    else:
        how = "--all" if screen.rows is None else f"ablate status {shlex.quote(study)} --all"
        lines += _by_arm(trials, screen, how)
        shown = _interesting(trials)
        if shown:
            lines += ["", *_table(shown, screen)]
        left = len(trials) - len(shown)
        lines.append(screen.paint(cut(f"... and {left} more trials: {how}", screen.width), "dim"))
    lines += _errors(trials, study, screen)
    wrong = [f"damaged: {said}" for said in damages_of(trials)]
    return [*lines, *([""] if wrong else []), *wrong]


# ---- the parts


def _head(status: Mapping[str, Any], screen: Screen) -> list[str]:
    trials = status["trials"]
    head = f"{status['study']}: {status['state']}: {counts_line(status['counts'])}"
    if status.get("queued"):
        head += f" ({status['queued']} in SLURM's queue)"
    lines = [screen.paint(cut(head, screen.width), "bold")]
    if status["question"]:
        lines += _fitted(" ".join(status["question"].split()), screen)
    steps, done = sum(t["steps"] for t in trials), sum(_steps_done(t) for t in trials)
    # Rounded down: 100 % is when all is done.
    parts = [f"{100 * done // steps} % of all steps"] if steps else []
    if eta := study_eta(trials):
        parts.append(f"about {duration(eta)} left")
    hours = status.get("gpu_hours") or {}
    if hours.get("limit") is not None:
        parts.append(f"{hours['used']:.3g} of {hours['limit']:.3g} GPU-hours")
    if status.get("scheduler") == "silent":
        parts.append("SLURM does not answer: by the files alone")
    if parts:
        lines.append(cut(", ".join(parts), screen.width))
    return lines


def study_eta(trials: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds until the last trial, if as many run at once as now and all are as fast."""
    running = [t for t in trials if t["status"] == "running" and t.get("eta") is not None]
    if not running:
        return None
    speeds = [(t["steps"] - t["step"]) / t["eta"] for t in running if t["eta"]]
    if not speeds:
        return 0.0
    left = sum(t["steps"] - t["step"] for t in trials if t["status"] not in ENDED)
    return left / sum(speeds)


def _table(trials: Sequence[Mapping[str, Any]], screen: Screen) -> list[str]:
    titles = ("trial", "status", "step", "loss", "left", "node", "attempt", "")
    rows = [(titles, "bold")] + [(_row(t), STYLES.get(t["status"], "")) for t in trials]
    # The narrower the terminal, the fewer columns; id, status and step always stay.
    for columns in ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 6), (0, 1, 2, 3, 4), (0, 1, 2)):
        widths = {c: max(len(cells[c]) for cells, _ in rows) for c in columns if c != 7}
        used = sum(widths.values()) + 2 * len(widths)
        if used <= screen.width:
            break
    else:
        if screen.rows is None:
            return _stacked(rows, screen)
        widths[0] = max(8, widths[0] - (used - screen.width))
    lines = []
    for cells, style in rows:
        parts = []
        for column, width in widths.items():
            text = _middle(cells[column], width)
            text = text.rjust(width) if column in (2, 3, 4, 6) else text.ljust(width)
            parts.append(screen.paint(text, style) if column == 1 or style == "bold" else text)
        line = "  ".join(parts)
        if 7 in columns:
            line += "  " + cut(cells[7], screen.width - sum(widths.values()) - 2 * len(widths))
        lines.append(line.rstrip())
    return lines


def _stacked(rows: Sequence[tuple[tuple[str, ...], str]], screen: Screen) -> list[str]:
    """Each id on a line of its own, and below it the rest, each with its title."""
    lines, words = [], ("step ", "loss ", "left ", "on ", "attempt ", "")
    for cells, style in rows[1:]:
        status, found = cells[1], zip(words, cells[2:], strict=True)
        rest = "  ".join(f"{word}{cell}" for word, cell in found if cell)
        first, *more = _fitted(f"{status}  {rest}", screen, margin=2)
        lines += [cells[0], "  " + screen.paint(status, style) + first[len(status) :]]
        lines += [f"  {line}" for line in more]
    return lines


def _row(t: Mapping[str, Any]) -> tuple[str, ...]:
    loss = "" if t.get("loss") is None else f"{t['loss']:.4f}"
    left = "" if t.get("eta") is None else duration(t["eta"])
    waits = t["status"] in ("pending", "preempted", "running")
    status = t["status"]
    if t["status"] in ("pending", "preempted") and t.get("slurm_state") in IN_QUEUE:
        status += "*"  # in the queue
    note = (t["reason"] or "") if waits else ""
    return (
        t["id"],
        status,
        f"{t['step']}/{t['steps']}",
        loss,
        left,
        t.get("node") or "",
        str(t["attempt"]),
        note,
    )


def _by_arm(trials: Sequence[Mapping[str, Any]], screen: Screen, how: str) -> list[str]:
    """`how` all of them can be seen."""
    arms: dict[str, dict[str, int]] = {}
    for t in trials:
        arm = arms.setdefault(t["arm"], dict.fromkeys(STATUSES, 0))
        arm[t["status"]] += 1
    folded = _folded(arms) if len(arms) > ARMS else {}
    names = [a for a in arms if a not in folded]
    names = sorted(names, key=lambda a: -_weight(arms[a]))[:ARMS]
    names = [a for a in arms if a in set(names)]  # in the manifest's order again
    width = min(max((len(a) for a in names), default=0), max(12, screen.width - 40))
    lines = []
    for name in names:
        counts = ", ".join(
            screen.paint(f"{n} {status}", STYLES[status]) for status, n in arms[name].items() if n
        )
        lines.append(f"{_middle(name, width).ljust(width)}  {counts}")
    if len(arms) > len(names) + len(folded):
        rest = len(arms) - len(names) - len(folded)
        lines.append(screen.paint(f"... and {rest} more arms: {how}", "dim"))
    for status in dict.fromkeys(folded.values()):
        alike = [a for a, s in folded.items() if s == status]
        which = f"{alike[0]} ... {alike[-1]}" if len(alike) > 1 else alike[0]
        lines.append(cut(f"{len(alike)} arms all {status}: {which}", screen.width))
    return ["", *lines]


def _folded(arms: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Arms of which all trials are done, or pending: one line for all of them will do."""
    found = {}
    for name, counts in arms.items():
        (status, *others) = [s for s, n in counts.items() if n]
        if not others and status in ("done", "pending"):
            found[name] = status
    return found


def _weight(counts: Mapping[str, int]) -> int:
    return (
        100 * counts["running"] + 10 * (counts["failed"] + counts["diverged"]) + counts["preempted"]
    )


def _interesting(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that run, and those that went wrong; as many as fit."""
    found = [t for t in trials if t["status"] not in ("done", "pending")]
    return sorted(found, key=lambda t: FIRST.index(t["status"]))[:INTERESTING]


def _errors(trials: Iterable[Mapping[str, Any]], study: str, screen: Screen) -> list[str]:
    """Each reason once, with the trials that gave it."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for t in trials:
        if t["reason"] and t["status"] in ("failed", "diverged", "cancelled"):
            grouped.setdefault((t["status"], t["reason"]), []).append(t["id"])
    lines = []
    for (status, reason), ids in list(grouped.items())[:ERRORS]:
        who = ids[0] if len(ids) == 1 else f"{len(ids)} trials ({ids[0]}, ...)"
        said = _fitted(" ".join(f"{status}: {who}: {reason}".split()), screen)
        lines += [screen.paint(line, STYLES[status]) for line in said]
    if len(grouped) > ERRORS:
        lines.append(f"... and {len(grouped) - ERRORS} more reasons: --json")
    if any(status == "failed" for status, _ in grouped):
        lines.append(cut(f"The tracebacks: ablate logs {shlex.quote(study)}", screen.width))
    return ["", *lines] if lines else []


def _steps_done(t: Mapping[str, Any]) -> int:
    """Of a trial that came to its end all; of one that failed or was cancelled, what it did."""
    return t["steps"] if t["status"] in ("done", "diverged") else t["step"]


def _fitted(text: str, screen: Screen, margin: int = 0) -> list[str]:
    """All of it, in lines; on a screen that is redrawn as much as one line has room for."""
    width = max(1, screen.width - margin)
    if screen.rows is not None:
        return [cut(text, width)]
    return wrap(text, width, break_on_hyphens=False)


def cut(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    text = text.replace("\n", " ").rstrip()
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _middle(text: str, width: int) -> str:
    """The end of an id tells more than its middle."""
    if len(text) <= width:
        return text
    tail = min(14, width // 2)
    return text[: width - tail - 1] + "…" + text[-tail:]


def show(lines: Iterable[str], stream: TextIO | None = None) -> None:
    print("\n".join(lines), file=stream or sys.stdout)
