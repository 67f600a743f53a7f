"""`ablate spikes PATH`: loss spikes and what they cost, of a trial, a study or a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.spike_records import Records, name_batches, open_records, search
from ablate.cli.spike_view import plot, show
from ablate.errors import AblateError
from ablate.spikes import Event, score
from ablate.spikes.read import Table

__all__ = ["main"]

EXAMPLES = """\
  ablate spikes hello                        every trial of a study, arms compared on their batches
  ablate spikes hello/qk_norm-s0             one trial (or its folder)
  ablate spikes ID --follow                  events of a running trial as they happen
  ablate spikes run.csv --loss train_loss    any CSV, TSV or JSON lines with a step and a loss
  ablate spikes wandb/offline-run-...        an offline run of wandb
  ablate spikes run.csv --json
  ablate spikes run.csv --plot spikes.png
  ablate spikes replay ID --step 1234        what was in the batch, and what it did to each layer
"""


def main(argv: Sequence[str]) -> int:
    """0; 1 where files of a trial are damaged."""
    if argv[:1] == ["replay"]:
        from ablate.cli.spike_replay import main as replay

        return replay(argv[1:])
    parser = reading_parser("spikes", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="PATH", help="a trial, a study or a file")
    parser.add_argument("--step", help="name of the step column")
    parser.add_argument("--loss", help="name of the loss column")
    parser.add_argument("--plot", metavar="FILE", help="the losses with the events marked")
    parser.add_argument("--follow", action="store_true", help="go on while the run does")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if len(words) != 1:
        raise AblateError("name one trial, study or file: `ablate spikes PATH`.")
    if options.plot and not Path(options.plot).suffix:  # matplotlib would choose another name
        raise AblateError(f"--plot {options.plot}: what kind of picture? Let the name end in .png.")

    if options.plot and options.follow:
        raise AblateError("--plot draws what is there, --follow goes on: give one of them.")

    def read() -> Any:
        return open_records(words[0], options.runs_dir, options.step, options.loss)

    if options.follow:
        return _follow(read, options.json)
    records = read()
    for table in records.tables.values():
        if table.said:
            print(table.said, file=sys.stderr)
    found = search(records)
    if options.plot:
        plot(records.tables, found, Path(options.plot))
    batches = name_batches(records, found)
    shown = [_record(n, records.tables[n], events, batches) for n, events in found.items()]
    if options.json:
        print(json.dumps(_answer(words[0], shown), indent=2))
    else:
        for record in shown:
            show(record)
    return _tell(records)


def _tell(records: Records) -> int:
    """Names what is damaged; the exit code."""
    for id, said in records.damaged.items():
        print(f"ablate spikes: {id}: {said}", file=sys.stderr)
    return 1 if records.damaged else 0


def _follow(read: Any, as_json: bool) -> int:
    from ablate.cli.spike_follow import follow

    records = read()
    if len(records.tables) != 1:
        raise AblateError("--follow goes on with one trial or file, not a whole study.")
    code = _tell(records)
    try:
        follow(read, as_json=as_json)
    except KeyboardInterrupt:
        print("stopped; the run itself goes on.", file=sys.stderr)
    return code


def _record(
    name: str,
    table: Table,
    events: list[Event],
    batches: dict[tuple[str, int], dict[str, Any]],
) -> dict[str, Any]:
    """Events and scores of one record, with rows as they are numbered in its file."""
    grad = table.signals.get("grad_norm")
    scores = score(table.steps, table.losses, events, grad)
    shown = []
    for event in events:
        made = event.to_dict()
        for key in ("start_row", "detect_row", "peak_row", "end_row"):
            if made[key] is not None:
                made[key] = int(table.rows[made[key]])
        by_data = event.cause == "data"  # an arm's own may stand on the same batch
        shown.append(made | (batches.get((name, event.peak or -1), {}) if by_data else {}))
    return {"name": name, "events": shown, "scores": scores}


def _answer(path: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record's events and scores; of a study all events with their trial, scores by trial."""
    if len(records) == 1:
        return {"path": path, "events": records[0]["events"], "scores": records[0]["scores"]}
    events = [{"trial": r["name"], **e} for r in records for e in r["events"]]
    return {"path": path, "events": events, "scores": {r["name"]: r["scores"] for r in records}}
