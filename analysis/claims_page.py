"""The ledger as a Markdown page, with the commands behind it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pandas as pd

from ablate.analysis.claims_view import headline, text_rows
from ablate.analysis.display import count
from ablate.analysis.ledger import Claimed
from ablate.analysis.markdown import markdown_table

__all__ = ["claims_markdown"]


def claims_markdown(table: pd.DataFrame, claimed: Sequence[Claimed], source: str) -> str:
    """The page: the ledger as a table, what stands behind each study, and how to run it again.

    Args:
        table: the ledger.
        claimed: what it was computed from.
        source: the file or folder, as the page's own command names it.
    """
    rows = []
    for row in text_rows(table):
        verdict = f"**{row['verdict']}**"
        if row["nearest"]:
            verdict += f"; nearest: {row['nearest']}: **{row['nearest_verdict'] or 'not tested'}**"
        rows.append(
            {
                "claim": row["statement"],
                "metric": f"`{row['metric']}`",
                "arms": f"{row['of']} against {row['against']}",
                "claimed": row["claimed"],
                "measured": row["measured"],
                "verdict": verdict,
                "note": "; ".join(x for x in (row["note"], row["exploratory"]) if x),
                "study": f"`{row['study']}`",
            }
        )
    lines = [
        "# Claims put to the test",
        "",
        "This page is written by `ablate claims` from the trials' own numbers, no line by hand:",
        "",
        "```sh",
        f"ablate claims {shlex.quote(source)} --markdown",
        "```",
        "",
        headline(table),
        "",
        "The studies are small (their size stands below each), so each verdict holds at that size. "
        "Intervals are simultaneous over the claims of a study, at its level; a relative one is "
        "of the ratio, seed by seed. A verdict is *supported* where the interval lies on the "
        "claimed side of 0 and reaches the claimed size, *weaker than claimed* where it lies on "
        "that side and wholly short of the size, *contradicted* where it lies on the other side "
        "or the equivalence test holds, *undecided* otherwise: also where the events that a claim "
        "speaks of happened in no trial of either arm, or in all alike. What is *not testable as "
        "worded* counts for neither side; the nearest statement that can be tested has a verdict "
        "of its own beside it.",
        "",
        markdown_table(pd.DataFrame(rows)),
        "",
        "## The studies",
        "",
    ]
    for one in claimed:
        lines += _study(one)
    return "\n".join(lines)


def _study(one: Claimed) -> list[str]:
    m, trials = one.manifest, one.trials
    sweep = m.get("sweep") or {}
    written, environment = sweep.get("written") or {}, m.get("environment") or {}
    overrides = " ".join(map(str, sweep.get("overrides") or []))
    name = str(sweep.get("name") or m["study"])
    budget = m.get("budget") or {}
    seconds = pd.to_numeric(trials["seconds"]).sum() if "seconds" in trials else 0.0
    seeds = ", ".join(str(int(s)) for s in sorted(trials["seed"].unique()))
    machine = ", ".join(
        f"{k} {environment[k]}" for k in ("python", "torch", "platform") if environment.get(k)
    )
    lines = [
        f"### {m['study']}",
        "",
        " ".join(str(m.get("question") or "").split()),
        "",
        "```sh",
        f"ablate launch sweep={name} {overrides}".rstrip(),
        f"ablate report {shlex.quote(m['study'])}",
        "```",
        "",
        f"- baseline: `{' '.join(map(str, written.get('baseline') or []))}`",
        f"- {count(len(trials), 'trial')}, seeds {seeds}, {budget.get('steps', 0):,} steps of "
        f"{budget.get('tokens', 0):,} tokens; {seconds:,.0f} s of training in all",
        f"- {machine}",
    ]
    lines += [f"- claim of {c['source']}: {c['statement']}" for c in m["claim"]]
    return [*lines, ""]
