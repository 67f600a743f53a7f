"""The report as Markdown: the verdicts, how they were reached, what the arms are, how to run it
again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablate.analysis.cells import cells
from ablate.analysis.display import decimals, display, explain, fixed, headline, level, si
from ablate.analysis.judgement import Judgement

if TYPE_CHECKING:
    from ablate.analysis.registry import Section

__all__ = [
    "arms_table",
    "commands",
    "environment",
    "markdown",
    "markdown_table",
    "trials_table",
    "verdict_columns",
]


def markdown(j: Judgement, made: Sequence[tuple[Section, pd.DataFrame]] = ()) -> str:
    """The whole of report.md.

    Args:
        j: the judgement.
        made: the other tables, as `sections` gives them.
    """
    lines = [f"# {j.study}", ""]
    if j.manifest.get("question"):
        lines += [f"**{j.manifest['question']}**", ""]
    lines += [f"> **Exploratory**: {reason}.\n" for reason in j.exploratory]
    lines += [
        headline(j),
        "",
        "## Verdicts",
        "",
        markdown_table(_named(display(j), verdict_columns(j))),
        "",
    ]
    notes = [f"- **{r['arm']}**: {r['note']}" for r in j.table.to_dict("records") if r["note"]]
    lines += [*notes, ""] if notes else []
    lines += [explain(j), "", *(f"{note}\n" for note in j.notes)]
    lines += ["![Effects](effects.svg)", "", "![Curves](curves.svg)", ""]
    for section, frame in made:
        text = cells(frame, section.columns, decimals(j))
        titles = {c: section.columns[c][0] for c in text}
        lines += [
            f"## {section.title}",
            "",
            section.noted(text, level(j)),
            "",
            markdown_table(_named(text, titles)),
            "",
        ]
    lines += ["## Arms", "", markdown_table(arms_table(j)), ""]
    lines += ["## Trials", "", markdown_table(trials_table(j)), ""]
    lines += ["## Environment", "", *(f"- {k}: {v}" for k, v in environment(j).items()), ""]
    lines += ["## Reproduce", "", "```sh", *commands(j), "```", ""]
    return "\n".join(lines)


def verdict_columns(j: Judgement) -> dict[str, str]:
    """Columns of `display` that the verdict table shows, and their headers."""
    header = f"{level(j)} interval"
    columns = {"arm": "arm"}
    if j.ladder:
        columns["reference"] = "reference"
    if j.table["lr"].notna().any():
        columns["lr"] = "lr"
    columns |= {
        "seeds": "seeds",
        "mean": j.rule.metric,
        "difference": "difference",
        "interval": header,
    }
    columns |= {"p": "p", "verdict": "verdict"}
    if j.ladder:
        columns |= {
            "baseline_difference": f"to {j.baseline}",
            "baseline_interval": header,
        }
    return columns


def arms_table(j: Judgement) -> pd.DataFrame:
    """One row an arm: what it changes, and what it costs."""
    arms = {a["name"]: a for a in j.manifest.get("arms", [])}
    rows = []
    for row in j.table.to_dict("records"):
        arm = arms.get(row["arm"], {})
        rows.append(
            {
                "arm": row["arm"],
                "overrides": " ".join(map(str, arm.get("overrides") or [])),
                "changes": "; ".join(changes(arm, arms.get(row["reference"]))),
                "parameters": si(row.get("parameters")),
                "FLOPs/token": si(row.get("flops_per_token")),
                "tokens/s": si(row.get("tokens_per_second")),
            }
        )
    return pd.DataFrame(rows)


def changes(arm: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> list[str]:
    """`field: from → to` for what an arm changes against its reference, resizing included.

    Args:
        arm: of the manifest, with its difference to the baseline.
        reference: of the manifest; None: the baseline.
    """
    mine, theirs = arm.get("diff") or {}, (reference or {}).get("diff") or {}
    resized = arm.get("resized") or {}
    said = []
    for field in dict.fromkeys([*mine, *theirs]):
        base = (mine.get(field) or theirs[field])[0]
        old, new = theirs.get(field, [base, base])[1], mine.get(field, [base, base])[1]
        if old != new:
            note = " (matched)" if field in resized else ""
            said.append(f"{field}: {_value(old)} → {_value(new)}{note}")
    return said


def trials_table(j: Judgement) -> pd.DataFrame:
    """One row a trial: where it stands and its final value."""
    trials = j.frames.trials
    out = trials[["id", "arm", "seed", "status", "step", "steps", "attempt"]].copy()
    if trials["lr"].notna().any():
        out.insert(3, "lr", trials["lr"].map("{:g}".format))
    if j.rule.metric in trials:
        out[j.rule.metric] = trials[j.rule.metric].map(lambda v: fixed(v, 5) if v == v else "")
    out["reason"] = trials["reason"].fillna("")
    return out.astype(str)


def environment(j: Judgement) -> dict[str, str]:
    """Code, machine and data, as the manifest and the trials recorded them."""
    code = j.manifest.get("code") or {}
    out = {"ablate": str(code.get("version") or "")}
    if code.get("commit"):
        out["commit"] = (
            f"{code['commit']}{' (with uncommitted changes)' if code.get('dirty') else ''}"
        )
    out |= {str(k): _value(v) for k, v in (j.manifest.get("environment") or {}).items()}
    for column in ("device", "data_fingerprint"):
        if column in j.frames.trials:
            out[column] = ", ".join(sorted(j.frames.trials[column].dropna().astype(str).unique()))
    out = {k: v for k, v in out.items() if v}
    return out | {
        "manifest revision": str(j.manifest.get("revision", 1)),
        "launched": _time(j.manifest.get("created")),
    }


def commands(j: Judgement) -> list[str]:
    """What runs the study again."""
    if j.manifest.get("command"):
        table = shlex.quote(str(j.manifest.get("table", j.study)))
        return [str(j.manifest["command"]), f"ablate report {table}"]
    study = shlex.quote(j.study)
    seeds = ",".join(map(str, sorted(j.frames.trials["seed"].unique())))
    if j.manifest.get("design") != "singles":
        return [f"ablate launch {shlex.quote(f'sweep={j.study}')}", f"ablate report {study}"]
    lines = []
    for arm in j.manifest.get("arms", []):
        words = [*map(str, arm.get("overrides") or []), f"seed={seeds}", f"study={j.study}"]
        lines.append(shlex.join(["ablate", "train", "-m", *words]))
    return [*lines, f"ablate report {study}"]


def _named(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    return frame[list(columns)].rename(columns=dict(columns))


def markdown_table(frame: pd.DataFrame) -> str:
    """A frame of strings as a table."""
    cell = lambda v: str(v).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")  # noqa: E731
    head = "| " + " | ".join(map(cell, frame.columns)) + " |"
    rule = "|" + "|".join(" --- " for _ in frame.columns) + "|"
    return "\n".join(
        [head, rule, *("| " + " | ".join(map(cell, r)) + " |" for r in frame.to_numpy())]
    )


def _time(value: Any) -> str:
    """Seconds since the epoch as UTC: the same on every machine that reads the study."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return str(value or "")


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
