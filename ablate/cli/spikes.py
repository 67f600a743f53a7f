"""`ablate spikes PATH`: loss spikes and what they cost, of a trial, a study or a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.errors import AblateError, DataError
from ablate.rundir import StudyDir, TrialDir, find_study
from ablate.rundir.names import CONFIG, MANIFEST
from ablate.spikes import Event, compare, detect, score
from ablate.spikes.read import Table, from_rows, read_table

__all__ = ["main"]

EXAMPLES = """\
  ablate spikes hello                        every trial of a study, arms compared on their batches
  ablate spikes runs/hello/trials/ID         one trial
  ablate spikes run.csv --loss train_loss    any CSV, TSV or JSON lines with a step and a loss
  ablate spikes run.csv --json
  ablate spikes run.csv --plot spikes.png
"""


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("spikes", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="PATH", help="a trial, a study or a file")
    parser.add_argument("--step", help="name of the step column")
    parser.add_argument("--loss", help="name of the loss column")
    parser.add_argument("--plot", metavar="FILE", help="the losses with the events marked")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if len(words) != 1:
        raise AblateError("name one trial, study or file: `ablate spikes PATH`.")
    tables, groups = _open(words[0], options.runs_dir, options.step, options.loss)
    for table in tables.values():
        if table.said:
            print(table.said, file=sys.stderr)
    found = _detect(tables, groups)
    if options.plot:
        _plot(tables, found, Path(options.plot))
    records = [_record(name, tables[name], events) for name, events in found.items()]
    if options.json:
        print(json.dumps(_answer(words[0], records), indent=2))
        return 0
    for record in records:
        _show(record)
    return 0


def _open(
    word: str, runs_dir: str, step: str | None, loss: str | None
) -> tuple[dict[str, Table], list[list[str]]]:
    """The records by name, and which of them saw the same batches."""
    path = Path(word)
    if path.is_file():
        return {path.name: read_table(path, step=step, loss=loss)}, []
    if (path / CONFIG).exists():
        return {path.resolve().name: _trial(TrialDir(path), step, loss)}, []
    if path.is_dir() and not (path / MANIFEST).exists():
        raise DataError(f"{path} is neither a trial nor a study: it has no {CONFIG} or {MANIFEST}.")
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".ndjson", ".json"):
        raise DataError(f"There is no file {path}.")
    return _study(find_study(word, runs_dir), step, loss)


def _trial(trial: TrialDir, step: str | None, loss: str | None) -> Table:
    return replace(from_rows(list(trial.stitched()), trial.id, step=step, loss=loss), said="")


def _study(
    study: StudyDir, step: str | None, loss: str | None
) -> tuple[dict[str, Table], list[list[str]]]:
    tables: dict[str, Table] = {}
    seeds: dict[Any, list[str]] = {}
    for entry in study.manifest().get("trials", []):
        rows = list(study.trial(entry["id"]).stitched())
        if not rows:
            print(f"{entry['id']} has no record yet.", file=sys.stderr)
            continue
        tables[entry["id"]] = replace(from_rows(rows, entry["id"], step=step, loss=loss), said="")
        seeds.setdefault(entry.get("seed"), []).append(entry["id"])
    if not tables:
        raise DataError(f"No trial of the study {study.name} has written a row yet.")
    return tables, list(seeds.values())


def _detect(tables: dict[str, Table], groups: list[list[str]]) -> dict[str, list[Event]]:
    """Events of each record; trials of one seed are compared, for the batch is f(seed, step)."""
    found = {n: detect(t.steps, t.losses, **t.signals) for n, t in tables.items()}
    for group in groups:
        if len(group) > 1:
            runs = {n: (tables[n].steps, tables[n].losses) for n in group}
            found.update(compare(runs, found).events)
    return found


def _record(name: str, table: Table, events: list[Event]) -> dict[str, Any]:
    """Events and scores of one record, with rows as they are numbered in its file."""
    grad = table.signals.get("grad_norm")
    scores = score(table.steps, table.losses, events, grad)
    shown = []
    for event in events:
        made = event.to_dict()
        for key in ("start_row", "detect_row", "peak_row", "end_row"):
            if made[key] is not None:
                made[key] = int(table.rows[made[key]])
        shown.append(made)
    return {"name": name, "events": shown, "scores": scores}


def _answer(path: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record's events and scores; of a study all events with their trial, scores by trial."""
    if len(records) == 1:
        return {"path": path, "events": records[0]["events"], "scores": records[0]["scores"]}
    events = [{"trial": r["name"], **e} for r in records for e in r["events"]]
    return {"path": path, "events": events, "scores": {r["name"]: r["scores"] for r in records}}


def _show(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(record["name"], style="bold"))
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    titles = (
        "kind",
        "start",
        "detect",
        "peak",
        "end",
        "height",
        "sigma",
        "area",
        "recovery",
        "cause",
    )
    for title in titles:
        grid.add_column(
            title, no_wrap=True, justify="left" if title in ("kind", "cause") else "right"
        )
    for event in record["events"]:
        grid.add_row(*(Text(_cell(event[title])) for title in titles))
    console.print(grid if record["events"] else "no events")
    scores = (f"{k} {_cell(v)}" for k, v in record["scores"].items() if v is not None)
    console.print(Text(" · ".join(scores)))
    if record["scores"]["olmo2_score"] is None:
        console.print(Text("olmo2_score: none, the record is shorter than its window (1000 rows)"))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plot(tables: dict[str, Table], found: dict[str, list[Event]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(tables), 1, figsize=(10, 3 * len(tables)), squeeze=False)
    for axis, (name, table) in zip(axes[:, 0], tables.items(), strict=True):
        axis.plot(table.steps, table.losses, linewidth=0.6, color="0.4")
        for event in found[name]:
            end = event.start if event.end is None else event.end
            color = "tab:red" if event.is_alert else "tab:orange"
            axis.axvspan(event.start, max(end, event.start + 1), color=color, alpha=0.3)
            if event.is_alert:
                axis.annotate(event.kind, (event.start, 0.97), fontsize=7, va="top",
                              xycoords=("data", "axes fraction"))  # fmt: skip
        axis.set(title=name, xlabel="step", ylabel="loss (nats)")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise AblateError(f"--plot {path}: {error}. Let the name end in .png.") from None
    finally:
        plt.close(figure)
    print(f"wrote {path}", file=sys.stderr)
